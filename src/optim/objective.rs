//! The engine as an objective.

use super::Objective;
use crate::engine::{Engine, Rows};
use crate::error::Error;

impl Objective for Engine {
    fn parameters(&self) -> usize {
        Engine::parameters(self)
    }
    fn value(&self, theta: &[f64]) -> Result<f64, Error> {
        self.loss(theta)
    }
    fn gradient(&self, theta: &[f64], gradient: &mut [f64]) -> Result<f64, Error> {
        self.evaluate_into(theta, &mut vec![0.0; self.conditions().len()], gradient)
    }
    fn row_count(&self) -> Result<usize, Error> {
        Engine::row_count(self)
    }
    fn rows(&self, theta: &[f64], visit: &mut dyn FnMut(Rows<'_>)) -> Result<(), Error> {
        self.all_rows(theta, visit)
    }
    fn residuals(&self, theta: &[f64]) -> Result<Vec<f64>, Error> {
        self.scaled_residuals(theta)
    }
    fn transposed(&self, theta: &[f64], s: &[f64]) -> Result<Vec<f64>, Error> {
        Engine::transposed(self, theta, s)
    }
    fn gauss_newton(&self, theta: &[f64], v: &[f64]) -> Result<Vec<f64>, Error> {
        Engine::gauss_newton(self, theta, v)
    }
    fn within(&self, work: &mut (dyn FnMut() + Send)) {
        Engine::within(self, work);
    }
}

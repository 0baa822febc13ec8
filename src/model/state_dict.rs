//! The weights of PyTorch's `nn.Sequential`.

use super::{Model, damaged, numbers, unreadable};
use crate::error::Error;
use crate::network::{Activation, Architecture};
use crate::parameters::Parameters;
use safetensors::tensor::{SafeTensors, TensorView};
use std::collections::BTreeMap;

#[derive(Default)]
struct Layer<'a> {
    weight: Option<TensorView<'a>>,
    bias: Option<TensorView<'a>>,
}

pub(super) fn read(bytes: &[u8], name: &str, activation: &Activation) -> Result<Model, Error> {
    let tensors = SafeTensors::deserialize(bytes).map_err(unreadable)?;
    let mut layers: BTreeMap<usize, Layer<'_>> = BTreeMap::new();
    let mut prefixes = Vec::new();
    for (full, view) in tensors.iter() {
        let unknown = || {
            damaged(&format!(
                "`{full}` is no weight or bias of a numbered layer, such as `0.weight`"
            ))
        };
        let (rest, kind) = full.rsplit_once('.').ok_or_else(unknown)?;
        let (prefix, number) = rest.rsplit_once('.').unwrap_or(("", rest));
        let layer = layers
            .entry(number.parse().map_err(|_| unknown())?)
            .or_default();
        let place = match kind {
            "weight" => &mut layer.weight,
            "bias" => &mut layer.bias,
            _ => return Err(unknown()),
        };
        *place = Some(view);
        if !prefixes.contains(&prefix) {
            prefixes.push(prefix);
        }
    }
    if prefixes.len() > 1 {
        prefixes.sort_unstable();
        return Err(damaged(&format!(
            "it holds several networks ({}); save one at a time",
            prefixes.join(", ")
        )));
    }
    let mut widths: Vec<usize> = Vec::new();
    let mut theta = Vec::new();
    for (number, layer) in layers {
        let weight = layer
            .weight
            .ok_or_else(|| damaged(&format!("layer {number} has a bias but no weight")))?;
        let &[rows, columns] = weight.shape() else {
            return Err(damaged(&format!(
                "the weight of layer {number} is of shape {:?}; it should be a matrix",
                weight.shape()
            )));
        };
        match widths.last() {
            Some(&before) if before != columns => {
                return Err(damaged(&format!(
                    "layer {number} takes {columns} inputs, the one before gives {before}"
                )));
            }
            None => widths.push(columns),
            Some(_) => {}
        }
        widths.push(rows);
        theta.extend(numbers(&format!("{number}.weight"), &weight)?);
        match layer.bias {
            Some(bias) if bias.shape() == [rows] => {
                theta.extend(numbers(&format!("{number}.bias"), &bias)?);
            }
            Some(bias) => {
                return Err(damaged(&format!(
                    "the bias of layer {number} is of shape {:?}; [{rows}] was expected",
                    bias.shape()
                )));
            }
            None => theta.resize(theta.len() + rows, 0.0),
        }
    }
    let mut parameters = Parameters::new();
    let architecture = Architecture::mlp(&widths).activation(activation.clone());
    parameters.network(name, &architecture)?;
    parameters.set(&theta)?;
    Ok(Model::new(&parameters))
}

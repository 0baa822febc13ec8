//! Flat memory: a counting allocator, so these tests have a binary of their own and take
//! turns.

use dualtape::{
    Condition, Elemental, Engine, Equation, Error, Lowering, Options, Parameters, Points,
    Precision, Problem,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

struct Counting;

// Of all threads.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Of this thread: the test harness allocates in its own at any time.
#[derive(Clone, Copy, Default)]
struct Own {
    live: isize,
    peak: isize,
    calls: usize,
}

thread_local!(static OWN: Cell<Own> = const { Cell::new(Own { live: 0, peak: 0, calls: 0 }) });

fn count(bytes: isize) {
    OWN.with(|cell| {
        let mut own = cell.get();
        own.live += bytes;
        own.peak = own.peak.max(own.live);
        own.calls += usize::from(bytes > 0);
        cell.set(own);
    });
}

fn grow(bytes: usize) {
    count(bytes as isize);
    let live = LIVE.fetch_add(bytes, SeqCst) + bytes;
    PEAK.fetch_max(live, SeqCst);
}

fn shrink(bytes: usize) {
    count(-(bytes as isize));
    LIVE.fetch_sub(bytes, SeqCst);
}

// SAFETY: every call goes to the system's allocator unchanged; the rest is counting.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        shrink(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        shrink(layout.size());
        grow(size);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TURN: Mutex<()> = Mutex::new(());

/// What this thread allocates: the growth of its heap at the highest, and the number of
/// allocations.
fn own_growth(run: impl FnOnce()) -> (isize, usize) {
    let start = OWN.with(|cell| {
        let own = cell.get();
        cell.set(Own {
            peak: own.live,
            ..own
        });
        own
    });
    run();
    let end = OWN.get();
    (end.peak - start.live, end.calls - start.calls)
}

/// The growth of the heap of all threads at its highest.
fn growth(run: impl FnOnce()) -> usize {
    let start = LIVE.load(SeqCst);
    PEAK.store(start, SeqCst);
    run();
    PEAK.load(SeqCst) - start
}

fn burgers(width: usize, n: usize) -> (Parameters, Problem) {
    let mut params = Parameters::seeded(9);
    let net = params
        .mlp("u", &[2, width, width, 1], Elemental::Tanh)
        .expect("a network");
    let flow = Equation::record("flow", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        u.d(t) + u * u.d(x) - 0.01 * u.d(x).d(x)
    })
    .expect("flow");
    let end = Equation::record("end", &params, ["t", "x"], |[t, x]| net.at::<1>(&[t, x])[0])
        .expect("end");
    let list = |factor: f64| (0..n).map(|i| (i as f64 * factor).fract()).collect();
    let points = Points::new(vec![list(0.754_877_666), list(0.569_840_291)]).expect("points");
    let few = Points::from_rows(&[[0.1, 0.0], [0.2, 1.0]]).expect("points");
    let conditions = [Condition::new(&flow, points), Condition::new(&end, few)];
    let whole = Problem::new(&params, conditions).expect("a problem");
    (params, whole)
}

#[test]
fn c19_a_thousand_evaluations_keep_the_peak_of_the_tenth() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (params, whole) = burgers(8, 500);
    let engine = Engine::new(&whole).expect("an engine");
    let mut theta = params.values().to_vec();
    let mut evaluate = || {
        let evaluation = engine.evaluate(&theta).expect("an evaluation");
        for (theta, g) in theta.iter_mut().zip(&evaluation.gradient) {
            *theta -= 1e-3 * g;
        }
    };
    let start = OWN.get().live;
    let (tenth, _) = own_growth(|| (0..10).for_each(|_| evaluate()));
    let kept = OWN.get().live - start;
    let (later, _) = own_growth(|| (10..1_000).for_each(|_| evaluate()));
    assert!(tenth > 0, "something was counted");
    assert!(
        kept + later <= tenth,
        "peak {tenth} at the tenth step, {} later",
        kept + later
    );
}

#[test]
fn c19_nothing_is_allocated_once_warm() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for precision in [Precision::Double, Precision::Single] {
        // Two tasks and a last chunk of another size; too small for threads.
        let (params, whole) = burgers(8, 500);
        let options = Options::default().precision(precision).threads(1);
        let engine = Engine::with(&whole, &options).expect("an engine");
        let mut losses = vec![0.0; 2];
        let mut gradient = vec![0.0; params.len()];
        let mut evaluate = || {
            engine
                .evaluate_into(params.values(), &mut losses, &mut gradient)
                .expect("a loss");
        };
        let (bytes, calls) = own_growth(&mut evaluate);
        assert!(
            bytes > 0 && calls > 0,
            "the first evaluation makes its buffers"
        );
        let (bytes, calls) = own_growth(|| (0..20).for_each(|_| evaluate()));
        assert_eq!((bytes, calls), (0, 0), "{precision:?}");
    }
}

#[test]
fn c19_memory_does_not_grow_with_the_number_of_points() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let peak = |n: usize, threads: usize| {
        let (params, whole) = burgers(4, n);
        let options = Options::default().threads(threads);
        let engine = Engine::with(&whole, &options).expect("an engine");
        let mut losses = vec![0.0; 2];
        let mut gradient = vec![0.0; params.len()];
        let bytes = growth(|| {
            engine
                .evaluate_into(params.values(), &mut losses, &mut gradient)
                .expect("a loss");
        });
        assert!(bytes > 1_000, "something was counted");
        bytes
    };
    // How many threads find work is up to the system: each has a workspace, at most.
    let small = peak(10_000, 1);
    for threads in [1, 2] {
        let large = peak(1_000_000, threads);
        assert!(
            large < threads * small + (64 << 10),
            "{small} bytes for 10^4 points, {large} for 10^6 with {threads} threads"
        );
    }
}

/// Conditions with a residual of fourth order and one without derivatives.
fn steep(n: usize) -> (Parameters, Problem) {
    let mut params = Parameters::seeded(3);
    let net = params
        .mlp("u", &[2, 24, 24, 1], Elemental::Tanh)
        .expect("a network");
    let flow = Equation::record("flow", &params, ["t", "x"], |[t, x]| {
        let [u] = net.at(&[t, x]);
        let second = u.d(x).d(x);
        u.d(t) + u * u.d(x) + second + second.d(x).d(x)
    })
    .expect("flow");
    let start = Equation::record("start", &params, ["t", "x"], |[t, x]| {
        net.at::<1>(&[t, x])[0] - x.sin()
    })
    .expect("start");
    let list = |factor: f64| (0..n).map(|i| (i as f64 * factor).fract()).collect();
    let points = Points::new(vec![list(0.754_877_666), list(0.569_840_291)]).expect("points");
    let conditions = [
        Condition::new(&flow, points.clone()),
        Condition::new(&start, points),
    ];
    let whole = Problem::new(&params, conditions).expect("a problem");
    (params, whole)
}

#[test]
fn prediction_is_measurement() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (params, whole) = steep(150);
    let lowerings = [
        Lowering::Jets,
        Lowering::NestedReverse,
        Lowering::Partial { inner: 1 },
        Lowering::Partial { inner: 3 },
        Lowering::Auto,
    ];
    for lowering in lowerings {
        for recompute in [false, true] {
            for precision in [Precision::Double, Precision::Single] {
                // Chunks of the engine's choice, small ones, and the whole batch in one.
                for chunk in [None, Some(16), Some(160)] {
                    let mut options = Options::default()
                        .threads(1)
                        .lowering(lowering)
                        .recompute(recompute)
                        .precision(precision);
                    options.chunk = chunk;
                    let engine = Engine::with(&whole, &options).expect("an engine");
                    let (measured, _) = own_growth(|| {
                        engine.evaluate(params.values()).expect("an evaluation");
                    });
                    let ratio = engine.predicted_bytes() as f64 / measured as f64;
                    assert!(
                        (ratio - 1.0).abs() < 0.02,
                        "{options:?}: {} bytes predicted, {measured} measured",
                        engine.predicted_bytes()
                    );
                }
            }
        }
    }
}

#[test]
fn a_budget_is_kept_or_the_lack_is_told() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (params, whole) = steep(2_000);
    let free = Options::default().threads(1).lowering(Lowering::Auto);
    let engine = Engine::with(&whole, &free).expect("an engine");
    let want = engine.evaluate(params.values()).expect("an evaluation");
    let mut bytes = engine.predicted_bytes();
    let mut choices = Vec::new();
    let needed = loop {
        let options = free.clone().memory(bytes);
        let engine = match Engine::with(&whole, &options) {
            Ok(engine) => engine,
            Err(Error::MemoryBudget { given, needed }) => {
                assert_eq!(given, bytes);
                break needed;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(engine.predicted_bytes() <= bytes);
        let (measured, _) = own_growth(|| {
            let got = engine.evaluate(params.values()).expect("an evaluation");
            assert!((got.loss / want.loss - 1.0).abs() < 1e-13);
        });
        assert!(
            measured as usize <= bytes + bytes / 50,
            "{measured} of {bytes}"
        );
        let plan = engine.plans()[0];
        choices.push((plan.lowering, plan.recompute, plan.chunk));
        bytes = bytes * 4 / 5;
    };
    // Smaller chunks first, then recomputation; jets throughout.
    assert!(choices.len() > 3, "{choices:?}");
    assert!(
        choices.iter().all(|choice| choice.0 == Lowering::Jets),
        "{choices:?}"
    );
    assert!(
        choices.windows(2).all(|pair| pair[1].2 <= pair[0].2),
        "{choices:?}"
    );
    assert!(!choices[0].1, "{choices:?}");
    assert!(needed > bytes, "{needed} needed, {bytes} given");
    // That much is enough, and no less.
    let with = |bytes| Engine::with(&whole, &free.clone().memory(bytes)).map(|_| ());
    assert_eq!(with(needed), Ok(()));
    assert!(matches!(
        with(needed - 1),
        Err(Error::MemoryBudget { needed: again, .. }) if again == needed
    ));
    // Threads that do not fit are left out, and the bits stay.
    let few = Options::default().threads(4).memory(needed);
    let one = Options::default().threads(1).memory(needed);
    let evaluate = |options: &Options| {
        let engine = Engine::with(&whole, options).expect("an engine");
        assert!(engine.predicted_bytes() <= needed);
        engine.evaluate(params.values()).expect("an evaluation")
    };
    assert_eq!(evaluate(&few), evaluate(&one));
}

//! Models in files: what comes back, what PyTorch wrote, and what is damaged.

mod common;

use common::{assert_close, numbers};
use dualtape::{
    Activation, Architecture, Elemental, Elemental::Tanh, Equation, Error, Init, Model, Parameters,
    Points, Smoothness, ansatz, data, detach, select, values,
};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};
use std::path::{Path, PathBuf};

/// A folder that goes when the test is over.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("dualtape-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// Networks of several kinds, a coefficient, and an expression that uses most operations.
fn rich() -> Result<(Parameters, Equation), Error> {
    let mut params = Parameters::seeded(3);
    let net = params.mlp("u", &[4, 8, 2], Tanh)?;
    let siren = params.network("v", &Architecture::siren(&[2, 6, 6, 1], 7.0))?;
    let mixed = Architecture::mlp(&[1, 3, 4, 1])
        .activations([Elemental::Powi(2), Elemental::Softplus])
        .init(Init::LeCun);
    let mixed = params.network("w", &mixed)?;
    let nu = params.coefficient("nu", 0.1)?;
    let expression = Equation::record("solution", &params, ["t", "x", "y"], |[t, x, y]| {
        let waves = ansatz::periodic(x, 2.0, 1);
        let [u, p] = net.at(&[t, waves[0], waves[1], y]);
        let [v] = siren.at(&[x, y]);
        let [w] = mixed.at(&[t]);
        let steep = select(y.above(0.5), u.exp(), (u * u + 1.0).sqrt());
        [
            u.laplacian(&[x, y]) - nu.field() * v.d(x) + steep,
            p.d(t).d(x) + w * data("seen") / (2.0 + detach(p)),
            (x * x + 1.5).powf(0.3) * w + 0.0 * y + 3.25,
        ]
    })?;
    Ok((params, expression))
}

fn scattered() -> Result<Points, Error> {
    let list = |k: f64| (0..150).map(|n| (f64::from(n) * k).sin()).collect();
    let seen: Vec<f64> = (0..150).map(f64::from).collect();
    Points::new(vec![list(0.7), list(1.3), list(2.1)])?.with_column("seen", &seen)
}

#[test]
fn what_is_saved_comes_back() -> Result<(), Error> {
    let folder = Folder::new("models");
    let (params, expression) = rich()?;
    let path = folder.0.join("deep/rich.safetensors");
    let model = Model::new(&params).with(&expression)?;
    model.save(&path)?;
    assert!(
        path.exists()
            && std::fs::read_dir(folder.0.join("deep"))
                .expect("a folder")
                .count()
                == 1
    );
    let loaded = Model::load(&path)?;
    assert_eq!(loaded.names(), ["solution", "u", "v", "w"]);
    assert_eq!(loaded.parameters().values(), params.values());
    assert_eq!(loaded.parameters().blocks(), params.blocks());
    assert_eq!(
        loaded.parameters().coefficients()[0].value(loaded.parameters())?,
        0.1
    );
    // The same bits, from the file alone.
    let points = scattered()?;
    let want = values(&expression, &params, &points)?;
    assert_eq!(loaded.evaluate("solution", &points)?, want);
    assert_eq!(model.evaluate("solution", &points)?, want);
    // Saved again, it is the same file.
    let again = folder.0.join("again.safetensors");
    loaded.save(&again)?;
    assert_eq!(std::fs::read(&path).ok(), std::fs::read(&again).ok());
    // A loaded network can be recorded anew.
    let net = loaded.parameters().net("v")?;
    let slope = Equation::record("slope", loaded.parameters(), ["a", "b"], |[a, b]| {
        net.at::<1>(&[a, b])[0].d(a)
    })?;
    let plane = Points::new(vec![
        points.coordinate(0).to_vec(),
        points.coordinate(1).to_vec(),
    ])?;
    let slopes = values(&slope, loaded.parameters(), &plane)?;
    assert_eq!(loaded.derivatives("v", &plane, &[&["x1"]])?, [slopes]);
    Ok(())
}

#[test]
fn derivatives_of_any_order() -> Result<(), Error> {
    let mut params = Parameters::seeded(1);
    let net = params.mlp("n", &[2, 8, 1], Tanh)?;
    let solution = Equation::record("u", &params, ["t", "x"], |[t, x]| {
        (2.0 * x).sin() + t.powi(2) * x.powi(3) + 0.0 * net.at::<1>(&[t, x])[0]
    })?;
    let model = Model::new(&params).with(&solution)?;
    let points = Points::from_rows(&[[0.5, -0.3], [1.5, 0.8]])?;
    let orders: [&[&str]; 5] = [&[], &["t"], &["x", "x"], &["t", "x", "t"], &["x"; 6]];
    let got = model.derivatives("u", &points, &orders)?;
    for n in 0..2 {
        let [t, x] = [points.coordinate(0)[n], points.coordinate(1)[n]];
        let s = (2.0 * x).sin();
        let want = [
            s + t * t * x.powi(3),
            2.0 * t * x.powi(3),
            -4.0 * s + 6.0 * t * t * x,
            6.0 * x * x,
            -64.0 * s,
        ];
        let got: Vec<f64> = got.iter().map(|lists| lists[0][n]).collect();
        assert_close(&format!("point {n}"), &got, &want, 1e-14);
    }
    let bad = [
        (model.derivatives("u", &points, &[]).err(), "derivatives"),
        (model.derivatives("u", &points, &[&["y"]]).err(), "t, x"),
        (model.derivatives("v", &points, &[&["x"]]).err(), "u, n"),
        (
            model.evaluate("u", &Points::from_rows(&[[0.0]])?).err(),
            "coordinates",
        ),
        (model.clone().with(&solution).err(), "`u` is given twice"),
        (
            Model::new(&Parameters::new()).with(&solution).err(),
            "other parameters",
        ),
    ];
    for (error, part) in bad {
        let text = error.map_or_else(|| format!("no error about {part}"), |e| e.to_string());
        assert!(text.contains(part), "{text}: {part}");
    }
    Ok(())
}

#[test]
fn activations_of_the_user() -> Result<(), Error> {
    let folder = Folder::new("own");
    let mut params = Parameters::seeded(3);
    let slope = params.coefficient("slope", 1.5)?;
    let adaptive = Activation::recorded("adaptive", move |z| (slope.field() * z).tanh());
    let net = params.network("u", &Architecture::mlp(&[1, 5, 1]).activation(adaptive))?;
    let solution = Equation::record("solution", &params, ["x"], |[x]| x * net.at::<1>(&[x])[0])?;
    // Without the closure: the recorded solution is all there, the network itself is not.
    let path = folder.0.join("own.safetensors");
    Model::new(&params).with(&solution)?.save(&path)?;
    let loaded = Model::load(&path)?;
    assert_eq!(loaded.names(), ["solution"]);
    let points = Points::grid(&[(-1.0, 1.0, 9)])?;
    assert_eq!(
        loaded.evaluate("solution", &points)?,
        values(&solution, &params, &points)?
    );
    assert!(loaded.parameters().net("u").is_err());
    let again = folder.0.join("again.safetensors");
    loaded.save(&again)?;
    assert_eq!(Model::load(&again)?.parameters().blocks(), params.blocks());

    let custom = Elemental::custom("bend", Smoothness::Unlimited, |z, c| {
        c.fill(0.0);
        c[0] = z;
    });
    let bent = Equation::record("bent", &params, ["x"], |[x]| {
        net.at::<1>(&[x])[0].apply(custom)
    })?;
    let error = Model::new(&params)
        .with(&bent)?
        .save(folder.0.join("bent.safetensors"));
    assert!(
        error
            .expect_err("a function of the user")
            .to_string()
            .contains("bend")
    );
    assert!(!folder.0.join("bent.safetensors").exists());
    Ok(())
}

// PyTorch.

#[test]
fn weights_from_pytorch() -> Result<(), Error> {
    let text = std::fs::read_to_string(golden("torch.json")).expect("golden values");
    let golden_values: serde_json::Value = serde_json::from_str(&text).expect("json");
    for kind in ["f64", "f32"] {
        let model =
            Model::from_state_dict(golden(&format!("torch_{kind}.safetensors")), "u", Tanh)?;
        assert_eq!(model.parameters().net("u")?.widths(), [2, 6, 5, 2]);
        let want = &golden_values[kind];
        let points = Points::from_flat(
            2,
            &want["points"]
                .as_array()
                .expect("points")
                .iter()
                .flat_map(numbers)
                .collect::<Vec<_>>(),
        )?;
        let lists = |key: &str| -> Vec<f64> {
            want[key]
                .as_array()
                .expect(key)
                .iter()
                .flat_map(numbers)
                .collect()
        };
        assert_close(
            kind,
            &model.evaluate("u", &points)?.concat(),
            &lists("outputs"),
            1e-15,
        );
        let got = model.derivatives("u", &points, &[&["x1"], &["x1", "x2"]])?;
        assert_close(kind, &got[0].concat(), &lists("d_x1"), 1e-14);
        assert_close(kind, &got[1].concat(), &lists("d_x1_x2"), 1e-14);
    }
    // A prefix, and a layer without bias.
    let model = Model::from_state_dict(golden("torch_prefix.safetensors"), "u", Tanh)?;
    let got = model.evaluate("u", &Points::from_rows(&[[0.5]])?)?[0][0];
    assert!((got - 0.054526496678590775).abs() < 1e-7, "{got}");
    assert_eq!(model.parameters().matrix("u.0.bias")?.as_slice(), [0.0; 4]);
    Ok(())
}

/// A file of tensors of zeros.
fn tensors(list: &[(&str, Dtype, &[usize])]) -> Vec<u8> {
    let zeros = vec![0_u8; 4096];
    let views = list.iter().map(|(name, dtype, shape)| {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let view = TensorView::new(*dtype, shape.to_vec(), &zeros[..bytes]);
        (*name, view.expect("a tensor"))
    });
    safetensors::serialize(views, None).expect("a file")
}

#[test]
fn state_dicts_that_do_not_fit_are_named() {
    let folder = Folder::new("torch");
    use Dtype::{F16, F64};
    type List<'a> = &'a [(&'a str, Dtype, &'a [usize])];
    let cases: [(List<'_>, &str); 9] = [
        (&[("weight", F64, &[2, 2])], "no weight or bias"),
        (&[("0.gamma", F64, &[2])], "no weight or bias"),
        (&[("a.b.weight", F64, &[2, 2])], "no weight or bias"),
        (&[("0.bias", F64, &[2])], "a bias but no weight"),
        (&[("0.weight", F64, &[2, 2, 2])], "should be a matrix"),
        (
            &[("0.weight", F64, &[3, 2]), ("1.weight", F64, &[1, 4])],
            "the one before gives 3",
        ),
        (
            &[("0.weight", F64, &[3, 2]), ("0.bias", F64, &[2])],
            "[3] was expected",
        ),
        (
            &[("a.0.weight", F64, &[3, 2]), ("b.0.weight", F64, &[3, 2])],
            "several networks (a, b)",
        ),
        (&[("0.weight", F16, &[3, 2])], "F16"),
    ];
    for (list, part) in cases {
        let path = folder.write("bad.safetensors", &tensors(list));
        let text = Model::from_state_dict(&path, "u", Tanh)
            .expect_err(part)
            .to_string();
        assert!(
            text.contains(part) && text.contains("bad.safetensors"),
            "{text}: {part}"
        );
    }
    let empty = folder.write("empty.safetensors", &tensors(&[]));
    assert!(Model::from_state_dict(&empty, "u", Tanh).is_err());
}

// Damage.

fn whole_file(folder: &Folder) -> Result<Vec<u8>, Error> {
    let (params, expression) = rich()?;
    let path = folder.0.join("whole.safetensors");
    Model::new(&params).with(&expression)?.save(&path)?;
    Ok(std::fs::read(path).expect("the file"))
}

/// The same file with another text in its header.
fn with_header(bytes: &[u8], change: impl Fn(&str) -> String) -> Vec<u8> {
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header = std::str::from_utf8(&bytes[8..8 + length]).expect("text");
    let header = change(header);
    let mut own = (header.len() as u64).to_le_bytes().to_vec();
    own.extend(header.as_bytes());
    own.extend(&bytes[8 + length..]);
    own
}

#[test]
fn foreign_and_absurd_files_are_named() -> Result<(), Error> {
    let folder = Folder::new("damage");
    let whole = whole_file(&folder)?;
    let replaced = |from: &'static str, to: &'static str| {
        with_header(&whole, |header| {
            assert!(header.contains(from), "{from} in {header}");
            header.replacen(from, to, 1)
        })
    };
    let mut nan = whole.clone();
    let last = nan.len() - 8;
    nan[last..].copy_from_slice(&f64::NAN.to_le_bytes());
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "damaged"),
        (b"\x89PNG\r\n\x1a\n0123456789".to_vec(), "damaged"),
        (u64::MAX.to_le_bytes().to_vec(), "damaged"),
        (
            [&(1_u64 << 40).to_le_bytes()[..], &[b' '; 64]].concat(),
            "damaged",
        ),
        (
            std::fs::read(golden("torch_f64.safetensors")).expect("a file"),
            "from_state_dict",
        ),
        (nan, "finite"),
        (
            replaced("\\\"version\\\":1", "\\\"version\\\":99"),
            "version 99",
        ),
        (
            replaced("\\\"widths\\\":[4,8,2]", "\\\"widths\\\":[4,1000000000,2]"),
            "numbers",
        ),
        (
            replaced(
                "\\\"widths\\\":[4,8,2]",
                "\\\"widths\\\":[4294967296,4294967296,4294967296]",
            ),
            "more than fit",
        ),
        (
            replaced("\\\"widths\\\":[4,8,2]", "\\\"widths\\\":[8,4,2]"),
            "numbers",
        ),
        (
            replaced("\\\"widths\\\":[4,8,2]", "\\\"widths\\\":[4]"),
            "numbers",
        ),
        (replaced("\\\"tanh\\\"", "\\\"tank\\\""), "`tank`"),
        (replaced("\\\"omega\\\":7.0", "\\\"omega\\\":-7.0"), "omega"),
        (
            replaced("\\\"coefficient\\\"", "\\\"coefficience\\\""),
            "unknown variant",
        ),
        (
            replaced("\"u.0.weight\"", "\"u.9.weight\""),
            "lacks `u.0.weight`",
        ),
        (
            replaced("\\\"row\\\":1", "\\\"row\\\":77"),
            "damaged at node",
        ),
        (
            replaced("\\\"laplacian\\\":[1,2]", "\\\"laplacian\\\":[2,1]"),
            "damaged at node",
        ),
        (
            replaced("\\\"derivative\\\":1", "\\\"derivative\\\":9"),
            "damaged at node",
        ),
        (
            replaced("\\\"powf(0.3)\\\"", "\\\"powf(inf)\\\""),
            "damaged at node",
        ),
        (replaced("\\\"select\\\"", "\\\"stack\\\""), ""),
    ];
    for (n, (bytes, part)) in cases.into_iter().enumerate() {
        let path = folder.write("bad.safetensors", &bytes);
        let text = Model::load(&path).map(|_| ()).expect_err(part).to_string();
        assert!(
            text.contains(part) && text.contains("bad.safetensors"),
            "{n}, {text}: {part}"
        );
    }
    assert!(matches!(
        Model::load(folder.0.join("none")),
        Err(Error::File { .. })
    ));
    assert!(matches!(Model::load(&folder.0), Err(Error::File { .. })));
    // Cut off anywhere.
    for end in (0..whole.len()).step_by(97).chain([whole.len() - 1]) {
        let path = folder.write("cut.safetensors", &whole[..end]);
        assert!(
            Model::load(&path).is_err(),
            "{end} bytes of {}",
            whole.len()
        );
    }
    let path = folder.write("long.safetensors", &[&whole[..], &[0]].concat());
    assert!(Model::load(&path).is_err(), "a byte too many");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Changed bytes may give other numbers or an error, and never a panic, neither when the
    /// file is read nor when the model is evaluated.
    #[test]
    fn damage_never_panics(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..4)) {
        let folder = Folder::new("bytes");
        let mut bytes = whole_file(&folder)?;
        let header = u64::from_le_bytes(bytes[..8].try_into()?) as usize + 8;
        for (place, byte, anywhere) in changes {
            let length = if anywhere { bytes.len() } else { header };
            // Digits keep the header readable more often than any byte does.
            let place = place.index(length);
            bytes[place] = if bytes[place].is_ascii_digit() { b'0' + byte % 10 } else { byte };
        }
        let path = folder.write("bad.safetensors", &bytes);
        if let Ok(model) = Model::load(&path) {
            let points = scattered()?;
            for name in model.names() {
                let _ = model.evaluate(name, &points);
            }
        }
        let _ = Model::from_state_dict(&path, "u", Tanh);
    }
}

//! Arrays from NumPy's `.npy` files.
//!
//! Read by hand: the header is one dictionary of three keys, and a file is only trusted
//! once its length is what its header says. Knows nothing of points.

use crate::error::Error;
use std::path::Path;

/// An array of any shape, its last axis fastest.
///
/// ```no_run
/// let u = dualtape::points::read_npy("u.npy")?;
/// println!("{:?}, {} numbers", u.shape, u.values.len());
/// # Ok::<(), dualtape::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Its lengths.
    pub shape: Vec<usize>,
    /// Its numbers.
    pub values: Vec<f64>,
}

/// Reads a `.npy` file of 32- or 64-bit floating-point numbers, of either byte order, in C
/// or Fortran order.
///
/// # Errors
/// A file that cannot be read, is no such file, is damaged or cut off, or holds numbers of
/// another kind.
pub fn read_npy(path: impl AsRef<Path>) -> Result<Array, Error> {
    let path = path.as_ref();
    let fail = |reason: String| Error::File {
        path: path.display().to_string(),
        reason,
    };
    let bytes = std::fs::read(path).map_err(|error| fail(error.to_string()))?;
    parse(&bytes).map_err(fail)
}

fn parse(bytes: &[u8]) -> Result<Array, String> {
    let rest = bytes
        .strip_prefix(b"\x93NUMPY")
        .ok_or("not a .npy file: it does not begin with \\x93NUMPY")?;
    let cut_off = "cut off within its header";
    let (version, rest) = rest.split_first_chunk::<2>().ok_or(cut_off)?;
    let (length, rest) = match version[0] {
        1 => {
            let (length, rest) = rest.split_first_chunk::<2>().ok_or(cut_off)?;
            (usize::from(u16::from_le_bytes(*length)), rest)
        }
        2 | 3 => {
            let (length, rest) = rest.split_first_chunk::<4>().ok_or(cut_off)?;
            (u32::from_le_bytes(*length) as usize, rest)
        }
        other => return Err(format!("version {other} of the .npy format is not known")),
    };
    let (header, data) = rest.split_at_checked(length).ok_or(cut_off)?;
    let header = std::str::from_utf8(header).map_err(|_| "a header that is not text")?;
    let value = |key: &str| {
        let after = ["'", "\""]
            .iter()
            .find_map(|quote| header.split_once(&format!("{quote}{key}{quote}")))
            .map(|(_, after)| after.trim_start());
        let after = after.and_then(|after| after.strip_prefix(':'));
        after
            .map(str::trim_start)
            .ok_or_else(|| format!("its header has no `{key}`"))
    };

    let kind = value("descr")?;
    let kind = kind
        .strip_prefix(['\'', '"'])
        .and_then(|kind| kind.split(['\'', '"']).next());
    let number: fn(&[u8]) -> f64 = match kind {
        Some("<f8") => |b| f64::from_le_bytes(sized(b)),
        Some(">f8") => |b| f64::from_be_bytes(sized(b)),
        Some("<f4") => |b| f32::from_le_bytes(sized(b)).into(),
        Some(">f4") => |b| f32::from_be_bytes(sized(b)).into(),
        other => {
            return Err(format!(
                "it holds numbers of type {}; save float64 or float32, as by \
                 `numpy.save(path, a.astype(float))`",
                other.map_or_else(
                    || "of several fields".to_owned(),
                    |kind| format!("`{kind}`")
                ),
            ));
        }
    };
    let size = if kind.is_some_and(|kind| kind.ends_with('8')) {
        8
    } else {
        4
    };

    let order = value("fortran_order")?;
    let fortran = if order.starts_with("True") {
        true
    } else if order.starts_with("False") {
        false
    } else {
        return Err("its `fortran_order` is neither True nor False".to_owned());
    };

    let bad_shape = "its shape is no list of lengths";
    let list = value("shape")?.strip_prefix('(').ok_or(bad_shape)?;
    let (list, _) = list.split_once(')').ok_or(bad_shape)?;
    let mut shape = Vec::new();
    for length in list
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty())
    {
        shape.push(length.parse::<usize>().map_err(|_| bad_shape)?);
    }
    let expected = shape
        .iter()
        .try_fold(size, |product: usize, &length| product.checked_mul(length));
    if expected != Some(data.len()) {
        return Err(format!(
            "it should hold {shape:?} numbers of {size} bytes, but {} bytes are there: the file is \
             damaged or cut off",
            data.len()
        ));
    }
    let stored: Vec<f64> = data.chunks_exact(size).map(number).collect();
    let values = if fortran {
        c_order(&shape, &stored)
    } else {
        stored
    };
    Ok(Array { shape, values })
}

/// The bytes of one number; `chunks_exact` gives no other length.
fn sized<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut own = [0; N];
    own.copy_from_slice(&bytes[..N]);
    own
}

/// From first axis fastest to last axis fastest.
fn c_order(shape: &[usize], stored: &[f64]) -> Vec<f64> {
    (0..stored.len())
        .map(|mut place| {
            let (mut from, mut stride) = (0, stored.len());
            for &length in shape.iter().rev() {
                stride /= length;
                from += (place % length) * stride;
                place /= length;
            }
            stored[from]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn orders_and_kinds() {
        let numbers = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let little: Vec<u8> = numbers.iter().flat_map(|x: &f64| x.to_le_bytes()).collect();
        let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n";
        let array = parse(&file(header, &little)).expect("an array");
        assert_eq!((array.shape, array.values), (vec![2, 3], numbers.to_vec()));

        let single: Vec<u8> = [0.0_f32, 3.0, 1.0, 4.0, 2.0, 5.0]
            .iter()
            .flat_map(|x| x.to_be_bytes())
            .collect();
        let header = "{'descr': '>f4', 'fortran_order': True, 'shape': (2, 3), }\n";
        let array = parse(&file(header, &single)).expect("an array");
        assert_eq!(array.values, numbers);
        let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (6,), }\n";
        assert_eq!(parse(&file(header, &little)).expect("a list").shape, [6]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }\n";
        let cases: [(Vec<u8>, &str); 8] = [
            (b"PK\x03\x04".to_vec(), "not a .npy file"),
            (file(good, &[0; 7]), "cut off"),
            (file(good, &[0; 16]), "damaged"),
            (file(&good.replace("<f8", "<i8"), &[0; 8]), "`<i8`"),
            (
                file(&good.replace("'<f8'", "[('a', '<f8')]"), &[0; 8]),
                "fields",
            ),
            (file(&good.replace("(1,)", "(1"), &[0; 8]), "shape"),
            (
                file(
                    &good.replace("(1,)", "(4294967296, 4294967296, 4294967296)"),
                    &[],
                ),
                "damaged",
            ),
            (
                file(&good.replace("False", "None"), &[0; 8]),
                "fortran_order",
            ),
        ];
        for (bytes, part) in cases {
            let reason = parse(&bytes).expect_err(part);
            assert!(reason.contains(part), "{reason}: {part}");
        }
    }

    proptest! {
        /// Whatever is cut off or changed, there is a reason and no panic.
        #[test]
        fn damage_never_panics(cut in 0_usize..90, place in 0_usize..90, byte: u8) {
            let header = "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 1), }\n";
            let whole = file(header, &[0; 16]);
            prop_assert!(parse(&whole[..cut % whole.len()]).is_err());
            let mut bytes = whole;
            let place = place % bytes.len();
            bytes[place] = byte;
            let _ = parse(&bytes);
        }
    }
}

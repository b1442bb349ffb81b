//! Reads which part of an array `--slice` names.
//!
//! The notation is NumPy's, without steps: for each dimension `A:B`, `A:`, `:B`, `:` or one index,
//! separated by commas. Negative numbers count from the end. Dimensions that are not named are
//! whole. As in NumPy, a range that reaches beyond the array ends with it, an index beyond it is an
//! error, and a dimension with one index disappears from the shape of the result.

use orcheck_engine::restart::ArrayBox;
use orcheck_format::{Error, Result};

/// A part of an array.
#[derive(Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its elements.
    pub elements: ArrayBox,
    /// The shape of the result.
    pub shape: Vec<u64>,
}

impl Slice {
    /// The part of an array of this shape that `text` names; all of it without a text.
    ///
    /// # Errors
    /// Invalid, naming the dimension.
    pub fn of(text: Option<&str>, shape: &[u64]) -> Result<Self> {
        let mut named = text.map(|text| text.split(',')).into_iter().flatten();
        let (mut offset, mut lengths, mut result) = (Vec::new(), Vec::new(), Vec::new());
        for (dim, &len) in shape.iter().enumerate() {
            let word = named.next().unwrap_or(":").trim();
            let wrong = |what: String| {
                Error::invalid(format!("--slice, dimension {dim}: {what}"))
                    .next("write A:B, A:, :B, : or an index for each dimension, as in 0:10,:,5")
            };
            let number = |word: &str| {
                let number: i128 = (word.trim().parse())
                    .map_err(|_| wrong(format!("expected a number, found {word:?}")))?;
                let from_start = if number < 0 {
                    number + i128::from(len)
                } else {
                    number
                };
                Ok::<i128, Error>(from_start)
            };
            let (first, end) = match word.split_once(':') {
                Some((first, end)) => {
                    let bound = |word: &str, missing: u64| match word.trim() {
                        "" => Ok::<u64, Error>(missing),
                        word => Ok(number(word)?.clamp(0, i128::from(len)) as u64),
                    };
                    let (first, end) = (bound(first, 0)?, bound(end, len)?);
                    result.push(end.saturating_sub(first));
                    (first, end)
                }
                None => match u64::try_from(number(word)?) {
                    Ok(index) if index < len => (index, index + 1),
                    _ => return Err(wrong(format!("there is no index {word} in length {len}"))),
                },
            };
            offset.push(first);
            lengths.push(end.saturating_sub(first));
        }
        if let Some(word) = named.next() {
            return Err(Error::invalid(format!(
                "--slice: {word:?} is one dimension too many, the array has {}",
                shape.len()
            ))
            .next("name at most as many dimensions as `orcheck show` says"));
        }
        Ok(Self {
            elements: ArrayBox::new(&offset, &lengths)?,
            shape: result,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(text: &str) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
        let slice = Slice::of(Some(text), &[10, 4, 6]).unwrap();
        let elements = slice.elements;
        (elements.offset(), elements.shape(), slice.shape)
    }

    #[test]
    fn slices_mean_what_they_mean_in_numpy() {
        let all = Slice::of(None, &[10, 4]).unwrap();
        assert_eq!(all.elements, ArrayBox::whole(&[10, 4]).unwrap());
        assert_eq!(all.shape, [10, 4]);
        let (offset, lengths, shape) = slice("0:10,:,5");
        assert_eq!(offset, [0, 0, 5]);
        assert_eq!(lengths, [10, 4, 1]);
        assert_eq!(shape, [10, 4]);
        assert_eq!(slice("-2:").0, [8, 0, 0]);
        assert_eq!(slice("-1, 1:-1 ,2").0, [9, 1, 2]);
        assert_eq!(slice("-1, 1:-1 ,2").2, [2]);
        assert_eq!(slice("8:99").1, [2, 4, 6]);
        assert_eq!(slice("5:2").1, [0, 4, 6]);
    }

    #[test]
    fn what_is_no_slice_is_refused_by_dimension() {
        for (text, said) in [
            ("10", "dimension 0: there is no index 10 in length 10"),
            (":,-5", "dimension 1: there is no index -5 in length 4"),
            (":,x", "dimension 1: expected a number, found \"x\""),
            ("0:8:2", "dimension 0: expected a number, found \"8:2\""),
            ("", "dimension 0: expected a number, found \"\""),
            (
                ":,:,:,0",
                "\"0\" is one dimension too many, the array has 3",
            ),
        ] {
            let error = Slice::of(Some(text), &[10, 4, 6]).unwrap_err();
            assert!(error.message().contains(said), "{text}: {error}");
        }
    }
}

//! Valid files, and malicious ones.

use std::io::Write;

use ::safetensors::tensor::{TensorView, serialize};
use proptest::prelude::*;
use tempfile::NamedTempFile;

use super::*;

fn file(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        data,
    ]
    .concat()
}

fn refusal(bytes: &[u8]) -> String {
    match MappedSafetensors::open(file(bytes).path()) {
        Err(SafetensorsError::Format { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn a_model() -> Vec<u8> {
    let weight: Vec<u8> = (0..6u32).flat_map(|n| (n as f32).to_le_bytes()).collect();
    let views = [
        ("weight", TensorView::new(Dtype::F32, vec![2, 3], &weight)),
        ("bias", TensorView::new(Dtype::BF16, vec![1], &[1, 2])),
        ("mask", TensorView::new(Dtype::BOOL, vec![3], &[0, 1, 1])),
    ];
    serialize(views.map(|(name, view)| (name, view.unwrap())), None).unwrap()
}

#[test]
fn tensors_are_borrowed_from_the_mapping_and_outlive_the_file() {
    let on_disk = file(&a_model());
    let opened = MappedSafetensors::open(on_disk.path()).unwrap();
    assert_eq!(opened.names(), ["weight", "bias", "mask"]);
    let weight = opened.tensor("weight").unwrap();
    assert_eq!((weight.dtype(), weight.shape()), (DType::F32, &[2, 3][..]));
    let inside = opened.data.as_bytes().unwrap().as_ptr_range();
    assert!(inside.contains(&weight.as_bytes().unwrap().as_ptr()));
    let bias = opened.tensor("bias").unwrap();
    assert_eq!(
        bias.as_bytes().unwrap().as_ptr(),
        inside.start.wrapping_add(24)
    );
    assert_eq!(opened.tensor("mask").unwrap().dtype(), DType::Bool);
    drop(opened);
    drop(on_disk);
    assert_eq!(
        weight.as_slice::<f32>().unwrap(),
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    );
    let mut mine = weight.clone();
    mine.make_mut::<f32>().unwrap()[0] = 9.0;
    assert_eq!(weight.as_slice::<f32>().unwrap()[0], 0.0);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = a_model();
    for len in 0..whole.len() {
        refusal(&whole[..len]);
    }
    refusal(&[&whole[..], b"x"].concat());
}

#[test]
fn hostile_headers_are_refused() {
    assert_eq!(
        refusal(&u64::MAX.to_le_bytes()),
        format!(
            "its header claims {} bytes, at most 100000000 are allowed",
            u64::MAX
        )
    );
    assert!(refusal(&99u64.to_le_bytes()).ends_with("only 0 follow"));
    assert!(refusal(&with_header("\u{0}", b"")).starts_with("header: "));
    assert!(refusal(&with_header(&"[".repeat(100_000), b"")).starts_with("header: "));
    for tensors in [
        // Beyond the end, backwards, with a gap, overlapping, of another size than the shape's, overflowing.
        r#"{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}"#,
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[8,4]}}"#,
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#,
        r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#,
        r#"{"a":{"dtype":"F32","shape":[8],"data_offsets":[0,8]}}"#,
        r#"{"a":{"dtype":"U8","shape":[18446744073709551615,2],"data_offsets":[0,8]}}"#,
        r#"{"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}}"#,
        r#"{"a":{"dtype":"U128","shape":[1],"data_offsets":[0,8]}}"#,
        r#"{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,8]}}"#,
    ] {
        refusal(&with_header(tensors, &[0; 8]));
    }
}

#[test]
fn sizes_that_overflow_in_sum_are_refused() {
    // Each fits into 64 bits, even counted in bits; eight of them and the header do not.
    let each = (1u64 << 61) - 1;
    let tensors: Vec<_> = (0..8)
        .map(|i| {
            let (start, end) = (i * each, (i + 1) * each);
            format!(r#""t{i}":{{"dtype":"U8","shape":[{each}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    let reason = refusal(&with_header(&format!("{{{}}}", tensors.join(",")), b""));
    assert!(reason.ends_with("0 are there"), "{reason}");
}

#[test]
fn what_is_not_a_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [folder.path(), &fifo, &folder.path().join("absent")] {
        let error = MappedSafetensors::open(path).unwrap_err();
        assert!(matches!(error, SafetensorsError::System(_)), "{error}");
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
}

#[test]
fn names_and_types_that_are_not_there_are_errors() {
    let header = r#"{"odd":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}"#;
    // One extra space makes the data begin at an odd offset.
    let padding = if (LENGTH + header.len()).is_multiple_of(2) {
        ""
    } else {
        " "
    };
    let file = file(&with_header(&format!("{header}{padding}"), &[0; 5]));
    let opened = MappedSafetensors::open(file.path()).unwrap();
    let error = opened.tensor("gone").unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("has no tensor `gone`; see `names()` for what it has")
    );
    assert_eq!(
        opened.tensor("odd").unwrap_err().to_string(),
        "tensor `odd`: tensorpipe has no F8_E4M3 tensors; convert to f16, bf16 or f32 first"
    );
    let misaligned = opened.tensor("f").unwrap();
    assert!(matches!(
        misaligned.as_slice::<f32>(),
        Err(Misuse::Alignment { .. })
    ));
    assert_eq!(
        misaligned.to_aligned().unwrap().as_slice::<f32>().unwrap(),
        [0.0]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn changed_bytes_never_panic(at in any::<prop::sample::Index>(), byte: u8, more in 0usize..20) {
        let mut bytes = a_model();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let header_end = bytes.len() - 29;
        let second = (at * 31 + more) % header_end;
        bytes[second] = bytes[second].wrapping_add(more as u8);
        let file = file(&bytes);
        if let Ok(opened) = MappedSafetensors::open(file.path()) {
            for name in opened.names() {
                if let Ok(tensor) = opened.tensor(name) {
                    prop_assert_eq!(tensor.as_bytes().unwrap().len(), tensor.byte_len());
                }
            }
        }
    }
}

//! Tensors borrowed from a memory-mapped `.safetensors` file.
//!
//! Opening checks the whole header: every tensor lies inside the file, and the tensors cover the file without gaps. So
//! [`MappedSafetensors::tensor`] cannot reach outside. The file may come from anybody.

#![allow(unsafe_code, reason = "a file is mapped into memory")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ::safetensors::Dtype;
use ::safetensors::tensor::Metadata;
use memmap2::Mmap;

use crate::device::Buffer;
use crate::error::{Misuse, SystemError};
use crate::tensor::{DType, Shape, Tensor};

/// Size of the length field before the header, in bytes.
const LENGTH: usize = 8;

/// The longest header that the format allows, in bytes.
const HEADER_MAX: u64 = 100_000_000;

/// An open `.safetensors` file, whose tensors are borrowed from the mapping without a copy.
///
/// Tensors keep the mapping alive, so this may be dropped before them. Their memory is read-only ([`Tensor::make_mut`] copies) and aligned
/// as in the file: if [`Tensor::as_slice`] refuses it, call [`Tensor::to_aligned`].
///
/// # Trust
/// The file must not change while it is mapped. If a process shortens it, reading fails with SIGBUS; if a process overwrites it, the
/// tensors change while you use them. To replace weights, rename a new file over the old one, which leaves the mapping untouched.
///
/// ```no_run
/// # use tensorpipe::tensor::interop::MappedSafetensors;
/// let file = MappedSafetensors::open("model.safetensors")?;
/// for name in file.names() {
///     println!("{name}: {:?}", file.tensor(name)?);
/// }
/// # Ok::<(), tensorpipe::tensor::interop::SafetensorsError>(())
/// ```
#[derive(Debug)]
pub struct MappedSafetensors {
    path: PathBuf,
    header: Metadata,
    names: Vec<String>,
    /// The bytes after the header.
    data: Buffer,
}

/// Why a `.safetensors` file or one of its tensors cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// The system refused to open or map the file.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The file breaks the format.
    #[error(
        "{} is not a whole safetensors file: {reason}; fetch or write it again", .path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file has no tensor of that name.
    #[error("{} has no tensor `{name}`; see `names()` for what it has", .path.display())]
    Name {
        /// The file.
        path: PathBuf,
        /// The name asked for.
        name: String,
    },
    /// The tensor is of a kind that this crate does not have.
    #[error("tensor `{name}`: {source}")]
    Tensor {
        /// Its name.
        name: String,
        /// Why not.
        source: Misuse,
    },
}

impl MappedSafetensors {
    /// Maps the file at `path` and checks its header. Reads nothing else.
    ///
    /// # Errors
    /// [`SafetensorsError::System`] if it cannot be opened, [`SafetensorsError::Format`] if it is not a whole safetensors file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SafetensorsError> {
        let path = path.as_ref();
        let mapped = Buffer::from_owner(map(path)?);
        let format = |reason| SafetensorsError::Format {
            path: path.to_owned(),
            reason,
        };
        let (header, data_start) =
            checked_header(mapped.as_bytes().unwrap_or_default()).map_err(format)?;
        Ok(Self {
            path: path.to_owned(),
            names: header.offset_keys(),
            header,
            data: mapped.slice(data_start..mapped.len()),
        })
    }

    /// The names of its tensors, in file order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The tensor called `name`, borrowed from the mapping.
    ///
    /// # Errors
    /// [`SafetensorsError::Name`] when there is none, [`SafetensorsError::Tensor`] for an element type that this crate
    /// does not have, or too many dimensions.
    pub fn tensor(&self, name: &str) -> Result<Tensor, SafetensorsError> {
        let info = self
            .header
            .info(name)
            .ok_or_else(|| SafetensorsError::Name {
                path: self.path.clone(),
                name: name.to_owned(),
            })?;
        let shape: Shape = info.shape.iter().map(|dim| *dim as u64).collect();
        let (start, end) = info.data_offsets;
        dtype_of(info.dtype)
            .and_then(|dtype| Tensor::from_buffer(self.data.slice(start..end), dtype, shape))
            .map_err(|source| SafetensorsError::Tensor {
                name: name.to_owned(),
                source,
            })
    }
}

fn map(path: &Path) -> Result<Mmap, SystemError> {
    let refused = |call| move |error| SystemError::new(call, path.display().to_string(), error);
    // Opening a FIFO would block until a writer comes; it is refused right after.
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(refused("open"))?;
    if !file.metadata().map_err(refused("stat"))?.is_file() {
        return Err(refused("mmap")(std::io::Error::from_raw_os_error(
            libc::ENODEV,
        )));
    }
    // SAFETY: the mapping is private and read-only. That the file stays as it is meanwhile is the caller's part, said in the type's
    // documentation. Every bit pattern is a value of every element type, so even changed bytes are only wrong numbers.
    unsafe { Mmap::map(&file) }.map_err(refused("mmap"))
}

/// The header, and the offset of the data. The sums are computed here, since those of the `safetensors` crate overflow for sizes near the
/// end of the address space.
fn checked_header(file: &[u8]) -> Result<(Metadata, usize), String> {
    let (length, rest) = file
        .split_first_chunk::<LENGTH>()
        .ok_or("it is shorter than 8 bytes")?;
    let length = u64::from_le_bytes(*length);
    if length > HEADER_MAX {
        return Err(format!(
            "its header claims {length} bytes, at most {HEADER_MAX} are allowed"
        ));
    }
    let header = rest.get(..length as usize).map(<[u8]>::to_vec);
    let header = header.ok_or_else(|| {
        format!(
            "its header claims {length} bytes, only {} follow",
            rest.len()
        )
    })?;
    // This also checks that sizes fit shapes, and that the tensors lie side by side. It works on a copy: names must remain valid text
    // even if somebody writes to the file meanwhile.
    let header: Metadata =
        serde_json::from_slice(&header).map_err(|error| format!("header: {error}"))?;
    let data = rest.len() - length as usize;
    if header.data_len() != data {
        return Err(format!(
            "its tensors take {} bytes, {data} are there",
            header.data_len()
        ));
    }
    Ok((header, file.len() - data))
}

fn dtype_of(dtype: Dtype) -> Result<DType, Misuse> {
    Ok(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::U16 => DType::U16,
        Dtype::I16 => DType::I16,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::U32 => DType::U32,
        Dtype::I32 => DType::I32,
        Dtype::F32 => DType::F32,
        Dtype::U64 => DType::U64,
        Dtype::I64 => DType::I64,
        Dtype::F64 => DType::F64,
        other => {
            return Err(Misuse::UnsupportedDType {
                library: "tensorpipe",
                dtype: format!("{other:?}"),
                instead: "f16, bf16 or f32",
            });
        }
    })
}

#[cfg(test)]
mod tests;

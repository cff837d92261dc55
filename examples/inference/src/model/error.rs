//! Why a directory is no model.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tensorpipe::tensor::interop::SafetensorsError;

/// Why a model cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file that every model has is not there.
    #[error(
        "{} is not there; a model is a directory with config.json, tokenizer.json and model.safetensors, \
         `inference fetch DIR` makes one", .path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The system refused to read a file.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// In the system's words.
        source: io::Error,
    },
    /// The configuration is not valid, or belongs to another kind of model.
    #[error("{}: {reason}", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer is not valid, or belongs to another model.
    #[error("{}: {reason}", .path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file of weights cannot be mapped, or is not whole.
    #[error(transparent)]
    File(#[from] SafetensorsError),
    /// The weights do not match the configuration.
    #[error("{}: {reason}", .path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// The whole file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    fs::read(path).map_err(|source| {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => ModelError::Missing { path },
            _ => ModelError::Read { path, source },
        }
    })
}

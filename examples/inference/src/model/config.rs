//! `config.json` and its companions, read and checked: nothing in them can make the model panic.

use std::path::{Path, PathBuf};

use candle_transformers::models::bert;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::{ModelError, read as read_file};

/// The facts about a model that are known before its weights are read.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) bert: bert::Config,
    /// The most tokens of a sentence.
    pub(super) width: usize,
}

/// `sentence_bert_config.json`.
#[derive(Debug, Deserialize)]
struct Sentences {
    max_seq_length: Option<usize>,
}

/// `1_Pooling/config.json`: how tokens become a sentence.
#[derive(Debug, Deserialize)]
struct Pooling {
    #[serde(default)]
    pooling_mode_mean_tokens: bool,
}

/// Reads the configuration files in `directory`.
pub(super) fn read(directory: &Path) -> Result<Config, ModelError> {
    let path = directory.join("config.json");
    let bert: bert::Config = parse(&path, &read_file(&path)?)?;
    check(&bert).map_err(|reason| ModelError::Config { path, reason })?;
    let mut width = bert.max_position_embeddings;
    let companion: Option<(PathBuf, Sentences)> =
        optional(directory.join("sentence_bert_config.json"))?;
    if let Some((path, Sentences { max_seq_length })) = companion {
        width = width.min(max_seq_length.unwrap_or(width));
        if width == 0 {
            let reason = "`max_seq_length` is 0, no sentence is so short".to_owned();
            return Err(ModelError::Config { path, reason });
        }
    }
    let companion: Option<(PathBuf, Pooling)> = optional(directory.join("1_Pooling/config.json"))?;
    if let Some((
        path,
        Pooling {
            pooling_mode_mean_tokens,
        },
    )) = companion
        && !pooling_mode_mean_tokens
    {
        let reason =
            "this program knows only the mean of all tokens; take a model that is pooled so";
        let reason = reason.to_owned();
        return Err(ModelError::Config { path, reason });
    }
    Ok(Config { bert, width })
}

/// Checks the numbers that candle does not check itself.
fn check(bert: &bert::Config) -> Result<(), String> {
    if let Some(kind) = bert.model_type.as_deref().filter(|kind| *kind != "bert") {
        return Err(format!(
            "`model_type` is {kind:?}, and this program runs \"bert\" only"
        ));
    }
    let (hidden, heads) = (bert.hidden_size, bert.num_attention_heads);
    if hidden == 0 || heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(format!(
            "`hidden_size` {hidden} cannot be divided among {heads} attention heads"
        ));
    }
    if bert.max_position_embeddings == 0 || bert.vocab_size == 0 || bert.type_vocab_size == 0 {
        return Err("a model without positions, tokens or token types computes nothing".to_owned());
    }
    if u32::try_from(
        bert.vocab_size
            .max(bert.max_position_embeddings)
            .max(hidden),
    )
    .is_err()
    {
        return Err("sizes beyond 32 bits are not those of a model".to_owned());
    }
    Ok(())
}

fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, ModelError> {
    serde_json::from_slice(bytes).map_err(|error| ModelError::Config {
        path: path.to_owned(),
        reason: format!("not what it should be: {error}"),
    })
}

/// A file that only some models have.
fn optional<T: DeserializeOwned>(path: PathBuf) -> Result<Option<(PathBuf, T)>, ModelError> {
    match read_file(&path) {
        Ok(bytes) => {
            let parsed = parse(&path, &bytes)?;
            Ok(Some((path, parsed)))
        }
        Err(ModelError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

//! A model directory without a download: the architecture of the real model, a few layers of random weights.
//!
//! Its embeddings mean nothing, but they are a function of the sentence alone, and the same on every machine: enough to
//! test everything around the model.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use candle_core::{Device, Tensor};
use fastrand::Rng;
use serde_json::{Map, Value, json};

/// Numbers in an embedding.
pub const DIMENSION: usize = 32;

/// The most tokens that the model takes of one sentence.
pub const WIDTH: usize = 48;

/// Four special tokens, each letter and digit both at the begin and inside of a word, and some signs.
pub const VOCABULARY: usize = 4 + 2 * LETTERS.len() + SIGNS.len();

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz0123456789";
const SIGNS: &str = ".,!?'";
const LAYERS: usize = 2;
const INNER: usize = 64;

/// Writes `config.json`, `tokenizer.json` and `model.safetensors` into `directory`, which is made if it is not there.
///
/// # Errors
/// The directory cannot be made or written to.
pub fn write(directory: &Path) -> Result<()> {
    let place = || format!("cannot write a model to {}", directory.display());
    fs::create_dir_all(directory).with_context(place)?;
    fs::write(directory.join("config.json"), config().to_string()).with_context(place)?;
    fs::write(directory.join("tokenizer.json"), tokenizer()).with_context(place)?;
    let weights = weights(Rng::with_seed(1))?;
    candle_core::safetensors::save(&weights, directory.join("model.safetensors"))
        .with_context(place)
}

fn config() -> Value {
    json!({
        "model_type": "bert",
        "vocab_size": VOCABULARY,
        "hidden_size": DIMENSION,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "intermediate_size": INNER,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "max_position_embeddings": WIDTH,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    })
}

/// The model's `tokenizer.json`: a WordPiece tokenizer that spells every word.
pub fn tokenizer() -> String {
    let marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map(str::to_owned);
    let begins = LETTERS.chars().map(String::from);
    let inside = LETTERS.chars().map(|letter| format!("##{letter}"));
    let signs = SIGNS.chars().map(String::from);
    let tokens = marks.into_iter().chain(begins).chain(inside).chain(signs);
    let vocabulary: Map<String, Value> = tokens.zip((0..).map(Value::from)).collect();
    let mark = |name: &str| json!({"id": name, "ids": [vocabulary[name]], "tokens": [name]});
    json!({
        "version": "1.0",
        // The real tokenizer has these settings too. They must have no effect.
        "truncation": {"max_length": 16, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": null,
                    "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                       "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[CLS]": mark("[CLS]"), "[SEP]": mark("[SEP]")},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocabulary},
    })
    .to_string()
}

fn weights(mut random: Rng) -> Result<HashMap<String, Tensor>> {
    let mut weights = HashMap::new();
    let mut add = |name: String, shape: &[usize], around: f32| -> Result<()> {
        let values = (0..shape.iter().product()).map(|_| around + random.f32() - 0.5);
        let tensor = Tensor::from_iter(values, &Device::Cpu)?.reshape(shape)?;
        weights.insert(name, tensor);
        Ok(())
    };
    for (name, rows) in [("word", VOCABULARY), ("position", WIDTH), ("token_type", 2)] {
        let name = format!("embeddings.{name}_embeddings.weight");
        add(name, &[rows, DIMENSION], 0.0)?;
    }
    let mut norms = vec!["embeddings".to_owned()];
    for layer in 0..LAYERS {
        let layer = format!("encoder.layer.{layer}");
        for (name, outputs, inputs) in [
            ("attention.self.query", DIMENSION, DIMENSION),
            ("attention.self.key", DIMENSION, DIMENSION),
            ("attention.self.value", DIMENSION, DIMENSION),
            ("attention.output.dense", DIMENSION, DIMENSION),
            ("intermediate.dense", INNER, DIMENSION),
            ("output.dense", DIMENSION, INNER),
        ] {
            add(format!("{layer}.{name}.weight"), &[outputs, inputs], 0.0)?;
            add(format!("{layer}.{name}.bias"), &[outputs], 0.0)?;
        }
        norms.extend([
            format!("{layer}.attention.output"),
            format!("{layer}.output"),
        ]);
    }
    for norm in norms {
        add(format!("{norm}.LayerNorm.weight"), &[DIMENSION], 1.0)?;
        add(format!("{norm}.LayerNorm.bias"), &[DIMENSION], 0.0)?;
    }
    Ok(weights)
}

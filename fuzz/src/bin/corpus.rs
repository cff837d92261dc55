//! `corpus FOLDER` writes what the targets begin with into `FOLDER/<target>/`: the seeds, and what `inputs/<target>` keeps of
//! earlier runs, one input a line, in hexadecimal.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

fn main() -> Result<()> {
    let Some(corpus) = std::env::args_os().nth(1) else {
        return Err(Error::other("say into which folder"));
    };
    let write = |target: &str, name: String, bytes: Vec<u8>| {
        let folder = Path::new(&corpus).join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), bytes)
    };
    let seeds = tensorpipe::fuzzing::seeds().into_iter();
    for (i, (target, bytes)) in seeds.chain(tensorpipe_rpc::fuzzing::seeds()).enumerate() {
        write(target, format!("seed-{i}"), bytes)?;
    }
    for kept in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("inputs"))? {
        let kept = kept?;
        let target = kept.file_name().to_string_lossy().into_owned();
        for (line, text) in (1..).zip(fs::read_to_string(kept.path())?.lines()) {
            let why = || format!("line {line} of inputs/{target} is not hexadecimal");
            let bytes = bytes(text).ok_or_else(|| Error::new(ErrorKind::InvalidData, why()))?;
            write(&target, format!("line-{line}"), bytes)?;
        }
    }
    Ok(())
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let pairs = (0..text.len().next_multiple_of(2)).step_by(2);
    let pairs = pairs.map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok());
    pairs.collect()
}

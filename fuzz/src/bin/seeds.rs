//! Writes the inputs that the targets begin with into `corpus/<target>/`, beside this package's manifest.

use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let seeds = tensorpipe::fuzzing::seeds().into_iter();
    for (i, (target, bytes)) in seeds.chain(tensorpipe_rpc::fuzzing::seeds()).enumerate() {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("seed-{i}")), bytes)?;
    }
    Ok(())
}

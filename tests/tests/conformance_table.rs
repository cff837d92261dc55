//! What documents name is there: a test, or what it comes with, for every scenario of `CONFORMANCE.md`, tests that catch mutations, and
//! what links lead to.
#![allow(missing_docs, reason = "a test")]

use std::path::{Path, PathBuf};

use tensorpipe::conformance;

/// Rows of upstream's scenarios: a suite whose backend is not here yet is one row.
const ROWS: usize = 125;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The cells of every row of every table but the headings.
fn rows() -> Vec<Vec<String>> {
    let table = std::fs::read_to_string(package().join("CONFORMANCE.md")).unwrap();
    let lines = table.lines().filter(|line| line.starts_with("| "));
    let cells = lines.map(|line| {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    });
    cells
        .filter(|cells| cells.last().unwrap() != "here")
        .collect()
}

/// Whether `path`, a file and names of modules and of a test, is a test that runs.
fn exists(path: &str) -> Result<(), String> {
    let (file, names) = path.split_once("::").ok_or("it names no test")?;
    let file: PathBuf = if file.starts_with("tensorpipe") {
        package().join("..").join(file)
    } else {
        package().join("tests").join(file)
    };
    let text =
        std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let name = names.rsplit("::").next().unwrap_or(names);
    // Made by a macro: the suite has the scenario, and the file the instance.
    if let Some((module, scenario)) = names.split_once("::") {
        for (suite, scenarios) in [
            ("transport", conformance::transport::SCENARIOS),
            ("channel", conformance::channel::SCENARIOS),
            ("device", conformance::device::SCENARIOS),
            ("pipe", conformance::pipe::SCENARIOS),
        ] {
            let text: String = text.split_whitespace().collect();
            let instance = format!("tensorpipe::{suite}_conformance!({module},");
            if text.contains(&instance) && scenarios.contains(&scenario) {
                return Ok(());
            }
        }
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let found = lines.iter().position(|line| {
        let function = line.trim_start_matches("async ");
        function.starts_with(&format!("fn {name}("))
    });
    let at = found.ok_or_else(|| format!("{} has no test `{name}`", file.display()))?;
    let mut above = lines[..at]
        .iter()
        .rev()
        .take_while(|line| line.starts_with('#') || line.starts_with("//"));
    // Of the rows of this macro, each is a test.
    let mut before = lines[..at].iter().rev().take_while(|line| **line != "}");
    let is_row = before.any(|line| *line == "stories! {");
    if is_row || above.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    {
        Ok(())
    } else {
        Err(format!("`{name}` in {} is not a test", file.display()))
    }
}

#[test]
fn every_row_names_a_test_that_exists_or_what_it_comes_with() {
    let mut wrong = Vec::new();
    for cells in rows() {
        let here = cells.last().unwrap();
        if here.starts_with("comes with ") {
            if !here.contains(": ") {
                wrong.push(format!("{cells:?} gives no reason"));
            }
            continue;
        }
        let path = here.split(" (").next().unwrap_or(here);
        if let Err(reason) = exists(path) {
            wrong.push(format!("{cells:?}: {reason}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(rows().iter().filter(|cells| cells.len() == 3).count(), ROWS);
}

#[test]
fn a_test_that_does_not_exist_is_noticed() {
    for missing in [
        "conformance_pipes.rs::default::no_such_scenario",
        "conformance_pipes.rs::no_such_instance::simple_write_read",
        "pipes/limits.rs::no_such_test",
        "pipes/main.rs::exchange",
        "no_such_file.rs::a",
    ] {
        assert!(exists(missing).is_err(), "{missing}");
    }
}

/// All Rust below a folder of the workspace.
fn code(folder: &Path) -> String {
    let mut code = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            code += &self::code(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            code += &std::fs::read_to_string(&path).unwrap();
        }
    }
    code
}

#[test]
fn tests_that_catch_mutations_of_devices_exist() {
    let folders = [
        "tests/tests",
        "examples/tests",
        "tensorpipe/src/conformance",
    ];
    let code = folders.map(|folder| code(&package().join("..").join(folder)));
    let table = std::fs::read_to_string(package().join("cuda-driver/MUTATIONS.md")).unwrap();
    for quoted in table.split('`').skip(1).step_by(2) {
        let name = quoted.rsplit("::").next().unwrap();
        // Functions of the product have shorter names.
        let is_test = name.matches('_').count() > 1
            && name.chars().all(|c| c == '_' || c.is_ascii_lowercase());
        let function = format!("fn {name}(");
        let exists = code.iter().any(|code| code.contains(&function));
        assert!(!is_test || exists, "there is no test `{name}`");
    }
}

#[test]
fn links_between_the_documents_lead_somewhere() {
    for folder in ["", "benches", "docs", "docs/decisions", "tests"] {
        let folder = package().join("..").join(folder);
        for entry in std::fs::read_dir(&folder).unwrap() {
            let file = entry.unwrap().path();
            if file.extension().is_some_and(|extension| extension == "md") {
                for rest in std::fs::read_to_string(&file).unwrap().split("](").skip(1) {
                    let target = rest.split([')', '#']).next().unwrap();
                    let leads = target.contains("://") || folder.join(target).exists();
                    assert!(leads, "{}: nothing is at {target}", file.display());
                }
            }
        }
    }
}

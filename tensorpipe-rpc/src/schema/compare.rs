//! Compares two descriptions of a service, and names the differences.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::description::IDEMPOTENT;
use super::{Description, MethodDescription};

/// The comparison ends after so many differences, because one end may be hostile.
const MAX_DIFFERENCES: usize = 64;

/// Checks that calls mean the same at both ends. A method that only one end has is no difference.
///
/// # Errors
/// [`Mismatch`], with every method that differs.
pub fn compare(client: &Description, server: &Description) -> Result<(), Mismatch> {
    let mut differences = Vec::new();
    if client.service != server.service {
        differences.push(Difference {
            place: "the service's name".to_owned(),
            client: Some(client.service.clone()),
            server: Some(server.service.clone()),
        });
    }
    let (mut by_name, mut by_id) = (HashMap::new(), HashMap::new());
    for method in &server.methods {
        by_name.entry(method.name.as_str()).or_insert(method);
        by_id.entry(method.id).or_insert(method);
    }
    let mut seen = HashSet::new();
    for ours in &client.methods {
        // Report one difference for each method, however often a hostile client names it.
        if !seen.insert(ours.name.as_str()) {
            continue;
        }
        if differences.len() >= MAX_DIFFERENCES {
            break;
        }
        differences.extend(match by_name.get(ours.name.as_str()) {
            Some(theirs) => difference(ours, theirs),
            None => by_id.get(&ours.id).map(|theirs| collision(ours, theirs)),
        });
    }
    if differences.is_empty() {
        return Ok(());
    }
    Err(Mismatch {
        service: client.service.clone(),
        differences,
    })
}

/// The two ends were built from different definitions of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The service's name at the client.
    pub service: String,
    /// The first difference of each method that differs: at least one, at most 64.
    pub differences: Vec<Difference>,
}

/// One place where two descriptions differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Where, as in "method `push`, struct Options".
    pub place: String,
    /// What the client has there, `None` for nothing.
    pub client: Option<String>,
    /// What the server has there, `None` for nothing.
    pub server: Option<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "client and server disagree about `{}`: ",
            PeerText(&self.service)
        )?;
        for (i, difference) in self.differences.iter().take(SHOWN).enumerate() {
            let comma = if i == 0 { "" } else { "; " };
            write!(f, "{comma}{difference}")?;
        }
        if let Some(more @ 1..) = self.differences.len().checked_sub(SHOWN) {
            write!(f, "; and {more} more")?;
        }
        f.write_str("; build both from the same version of the trait and its types")
    }
}

impl std::error::Error for Mismatch {}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the client has ", PeerText(&self.place))?;
        self.write_side(f, self.client.as_deref())?;
        f.write_str(", the server has ")?;
        self.write_side(f, self.server.as_deref())
    }
}

impl Difference {
    fn write_side(&self, f: &mut fmt::Formatter<'_>, side: Option<&str>) -> fmt::Result {
        match side {
            Some(text) => write!(f, "`{}`", PeerText(text)),
            None if self.place.contains(", struct ") => f.write_str("no further field"),
            None if self.place.contains(", enum ") => f.write_str("no further variant"),
            None => f.write_str("nothing"),
        }
    }
}

/// How many differences an error message shows, and how many characters of each.
const SHOWN: usize = 4;
const SHOWN_CHARS: usize = 300;

/// A text that a peer may have written: shortened, with control characters escaped.
struct PeerText<'a>(&'a str);

impl fmt::Display for PeerText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars().take(SHOWN_CHARS) {
            match c.is_control() {
                true => write!(f, "{}", c.escape_default())?,
                false => write!(f, "{c}")?,
            }
        }
        match self.0.chars().nth(SHOWN_CHARS) {
            Some(_) => f.write_str("…"),
            None => Ok(()),
        }
    }
}

/// The difference if a method that the server lacks has the id of another method there.
fn collision(client: &MethodDescription, server: &MethodDescription) -> Difference {
    Difference {
        place: format!("the method with the id {:#010x}", client.id),
        client: Some(client.name.clone()),
        server: Some(server.name.clone()),
    }
}

fn difference(client: &MethodDescription, server: &MethodDescription) -> Option<Difference> {
    let method = format!("method `{}`", client.name);
    // What may be retried need not be. The other way, a client would retry what the server no longer lets run twice.
    let plain = server.signature.strip_prefix(IDEMPOTENT);
    if client.signature != server.signature && plain != Some(&client.signature) {
        return Some(Difference {
            place: method,
            client: Some(client.signature.clone()),
            server: Some(server.signature.clone()),
        });
    }
    let traced = client.untraced.is_empty() && server.untraced.is_empty();
    if !traced || client.structure == server.structure {
        return None;
    }
    let (mut ours, mut theirs) = (client.structure.lines(), server.structure.lines());
    let same = ours
        .clone()
        .zip(theirs.clone())
        .take_while(|(a, b)| a == b)
        .count();
    // Lines of fields are indented below the line of their type.
    let is_heading = |line: &&str| !line.starts_with(' ');
    let heading = ours.clone().take(same).filter(is_heading).last();
    let (ours, theirs) = (ours.nth(same), theirs.nth(same));
    let inside = [ours, theirs]
        .iter()
        .flatten()
        .any(|line| !is_heading(line));
    // One end's type may have fewer lines than the other's: then the next type begins there.
    let shown = |line: Option<&str>| {
        let line = line.filter(|line| !inside || !is_heading(line));
        line.map(|line| line.trim().to_owned())
    };
    Some(Difference {
        place: match heading {
            Some(heading) if inside => format!("{method}, {heading}"),
            _ => method,
        },
        client: shown(ours),
        server: shown(theirs),
    })
}

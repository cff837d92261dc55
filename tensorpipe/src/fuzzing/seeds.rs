//! Where a run begins: the examples of WIRE.md, and what a peer says in two conversations.

use super::handshake::{believing, proving};
use super::{OURS, THEIRS, frames};
use crate::error::ResetCode;
use crate::proto::handshake::{ExpectProof, ServerHandshake};
use crate::proto::sim::frames::{control, frame};
use crate::proto::sim::{self, End, Pair, message};
use crate::proto::wire::frame::{Control, OPTIONAL};
use crate::proto::wire::hello::Reject;
use crate::proto::wire::preface;
use crate::wire_md::examples;

/// Inputs to begin with: the target's name, and one of its inputs.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = Vec::new();
    let said = examples("hex");
    // What follows a KEY is not read.
    let key_first = [&preface()[..], &said["KEY"], &said["HELLO to join"]].concat();
    all.push(("handshake", [&[3][..], &key_first].concat()));
    for (name, bytes) in said {
        let greeting = |to: u8| [&[to][..], &preface(), &bytes].concat();
        all.push(match &*name {
            "HELLO" | "HELLO to join" | "HELLO to join with a key" => ("handshake", greeting(0)),
            "ANSWER" | "REJECT" | "JOINED" | "JOINED with a key" => ("handshake", greeting(1)),
            "KEY" => ("handshake", greeting(3)),
            "STAY" => ("handshake", [&[2][..], &bytes].concat()),
            _ => ("descriptor", bytes),
        });
    }
    all.extend(proofs().map(|said| ("handshake", said)));
    for peer in [orderly(), abrupt()] {
        let mut rest = &peer.record[..];
        for (_, len) in &peer.frames {
            let frame = rest.split_off(..*len).unwrap_or_default();
            all.push(("descriptor", frame.to_vec()));
        }
        let (ping, later) = (control([Control::Ping(1)]), frame(200, OPTIONAL, &[0; 3]));
        let said = [&peer.record[..], &ping, &later].concat();
        // In one piece, in pieces of five bytes, with a script of everything that an application can do.
        all.push(("frames", [&[0, 0][..], &said].concat()));
        all.push(("frames", [&[5, 0][..], &said].concat()));
        let script: Vec<u8> = (0..12).chain((0..12).map(|c| c << 4 | (11 - c))).collect();
        let front = [7, script.len() as u8];
        all.push(("frames", [&front[..], &script, &said].concat()));
    }
    all
}

/// What the two ends say who prove a token, and what rejects them: behind the target's byte for who is spoken to.
fn proofs() -> [Vec<u8>; 6] {
    let (_, mut listener, [_, challenge]) = proving();
    let proved = believing().hello(&sim::purpose(OURS));
    listener
        .handle(&proved)
        .unwrap_or_else(|fault| panic!("{fault}"));
    let reject = Reject {
        transient: true,
        reason: "full".to_owned(),
    };
    let both = [&challenge[..], &ExpectProof::reject(&reject)].concat();
    let said = [
        (4, proved),
        (5, challenge),
        (5, both),
        (5, ServerHandshake::reject(&reject)),
        (6, listener.answer(&sim::answer(THEIRS))),
        (6, ExpectProof::reject(&reject)),
    ];
    said.map(|(to, said)| [&[to][..], &said].concat())
}

/// The peer of the application of the target `frames` takes this part in a conversation.
fn conversation(take_part: impl FnOnce(&mut Pair)) -> End {
    let mut pair = Pair::with(THEIRS, OURS, None);
    pair.a.lazy = true;
    frames::begin(&mut pair.b);
    pair.run();
    take_part(&mut pair);
    pair.run();
    pair.a
}

/// All that can be said without a fault, whatever the application does.
fn orderly() -> End {
    conversation(|pair| {
        pair.b.pipe.flush(2);
        pair.a.read(1);
        pair.a.read_but(2, &[0]);
        pair.a.write(&message(""));
        pair.a
            .write(&message("eager").payload(3).payload(0).tensor(8));
        pair.a.write(&message("ahead").payload(7).tensor(700));
        pair.a
            .write(&message("bulk").tensor(1500).tensor_on(1, 300));
        pair.a.pipe.flush(3);
        pair.a.pipe.widen_ahead(1000);
        pair.run();
        pair.a.pipe.narrow_ahead(0);
        pair.a.write(&message("hole"));
        pair.a.reset(4);
        pair.a.reset(3);
        pair.a.pipe.go_away("enough");
        pair.a.pipe.close();
    })
}

/// Neither side wants what the other sends.
fn abrupt() -> End {
    conversation(|pair| {
        pair.b.lazy = true;
        pair.a.write(&message("unwanted").tensor(100));
        pair.a.refuse(2, ResetCode::Refused);
        pair.b.reset(1);
        pair.run();
        pair.b.refuse(0, ResetCode::Refused);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a run would begin outside what it is about.
    #[test]
    fn an_orderly_conversation_is_one_that_a_pipe_takes() {
        let said = &orderly().record;
        assert_eq!(frames::Scene::new(&[]).take_in(said), Ok(()));
    }
}

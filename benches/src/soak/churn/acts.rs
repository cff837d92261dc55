//! What a worker does, one thing after another: each ends by itself, and what comes back is checked.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use futures_util::future::join_all;
use futures_util::stream;
use tensorpipe::Tensor;
use tensorpipe_rpc::CallError;
use tensorpipe_rpc::rendezvous::Value;

use super::SERVER;
use super::parcel::Parcel;
use super::service::{ON_PURPOSE, PING, PONG};
use super::site::Visit;
use crate::soak::dice::Dice;

/// The acts' names, in the order of [`act`].
pub(super) const ACTS: [&str; 13] = [
    "calls",
    "calls given up",
    "deadlines",
    "errors",
    "batched calls",
    "streams down",
    "streams up",
    "streams both ways",
    "references",
    "promises",
    "calls back",
    "rendezvous",
    "replicas",
];

/// Does one of them.
///
/// # Errors
/// When something is not as it should be.
pub(super) async fn act(number: usize, visit: &Visit, dice: &mut Dice) -> Result<()> {
    match number {
        0 => calls(visit, dice).await,
        1 => given_up(visit, dice).await,
        2 => deadlines(visit, dice).await,
        3 => errors(visit, dice).await,
        4 => batched(visit, dice).await,
        5 => down(visit, dice).await,
        6 => up(visit, dice).await,
        7 => both_ways(visit, dice).await,
        8 => references(visit, dice).await,
        9 => promises(visit, dice).await,
        10 => back(visit, dice).await,
        11 => {
            // Or nobody comes for it.
            let is_met = !dice.one_in(4);
            rendezvous(visit, dice, is_met).await
        }
        _ => replicas(visit, dice).await,
    }
}

async fn calls(visit: &Visit, dice: &mut Dice) -> Result<()> {
    let mut echoes = Vec::new();
    for _ in 0..=dice.below(6) {
        let parcel = draw(visit, dice)?;
        let (number, bytes) = (parcel.number, parcel.tensor.byte_len() as u64);
        echoes.push(async move {
            let echo = visit.client.echo(&parcel).await?;
            right(echo.check_is(number, bytes))
        });
    }
    for echo in join_all(echoes).await {
        echo?;
    }
    let (number, bytes) = (dice.next(), dice.length(visit.site.hand.largest) as u64);
    let made = visit.client.make(number, bytes, dice.one_in(2)).await?;
    right(made.check_is(number, bytes))
}

async fn given_up(visit: &Visit, dice: &mut Dice) -> Result<()> {
    let parcel = draw(visit, dice)?;
    let (echo, nap) = (visit.client.echo(&parcel), visit.client.nap(60_000));
    // Right away, or while it is under way.
    pause(dice, 4).await;
    drop(echo);
    pause(dice, 4).await;
    drop(nap);
    Ok(())
}

async fn deadlines(visit: &Visit, dice: &mut Dice) -> Result<()> {
    let hurried = |ms| visit.client.with_deadline(Duration::from_millis(ms));
    match hurried(1 + dice.below(8)).nap(60_000).await {
        Err(CallError::Deadline { .. }) => {}
        other => bail!("a nap of a minute ended within milliseconds: {other:?}"),
    }
    let parcel = draw(visit, dice)?;
    match hurried(dice.below(4)).echo(&parcel).await {
        Ok(echo) => right(echo.check().map(drop)),
        Err(CallError::Deadline { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn errors(visit: &Visit, dice: &mut Dice) -> Result<()> {
    match visit.client.fail(draw(visit, dice)?).await {
        Err(CallError::Service(reason)) if reason == ON_PURPOSE => Ok(()),
        other => bail!("a call that fails on purpose: {other:?}"),
    }
}

async fn batched(visit: &Visit, dice: &mut Dice) -> Result<()> {
    let mut doubled = Vec::new();
    for _ in 0..=dice.below(6) {
        let (rows, columns) = (1 + dice.below(12), 1 + dice.below(3) * 100);
        let first = dice.below(1000) as f32;
        let value = move |at: u64| first + at as f32;
        let values: Vec<_> = (0..rows * columns).map(value).collect();
        let asked = Tensor::from_vec(values, [rows, columns])?;
        // Its neighbours in the batch do not notice.
        if dice.one_in(8) {
            drop(visit.client.double(&asked));
            continue;
        }
        doubled.push(async move {
            let doubled = visit.client.double(&asked).await?;
            ensure!(doubled.shape() == [rows, columns], "{:?}", doubled.shape());
            let values = doubled.as_slice::<f32>()?;
            let wrong = (0..)
                .zip(values)
                .find(|(at, found)| 2.0 * value(*at) != **found);
            ensure!(wrong.is_none(), "from {first}: {wrong:?}");
            Ok(())
        });
    }
    join_all(doubled).await.into_iter().collect()
}

async fn down(visit: &Visit, dice: &mut Dice) -> Result<()> {
    let (many, seed) = (1 + dice.below(24), dice.next());
    let mut parcels = visit.client.pour(seed, many);
    // What the other end draws.
    let mut expected = Dice::new(seed);
    let until = if dice.one_in(3) {
        dice.below(many)
    } else {
        many
    };
    for _ in 0..until {
        let Some(parcel) = parcels.next().await else {
            bail!("a stream of {many} ended early");
        };
        let parcel = parcel?;
        let bytes = expected.length(visit.site.hand.largest) as u64;
        let number = expected.next();
        expected.next();
        right(parcel.check_is(number, bytes))?;
        if dice.one_in(12) {
            pause(dice, 30).await;
        }
    }
    if until == many {
        ensure!(parcels.next().await.is_none(), "a stream of {many} goes on");
    }
    Ok(())
}

async fn up(visit: &Visit, dice: &mut Dice) -> Result<()> {
    let (many, hand, mut chance) = (1 + dice.below(24), visit.site.hand.clone(), dice.fork());
    // Memory that is not to be had shows as a stream that is too short.
    let draw = move |_| Parcel::draw(&hand.context, &mut chance, hand.largest).ok();
    let parcels = stream::iter((0..many).map_while(draw));
    let most = if dice.one_in(3) {
        dice.below(many)
    } else {
        many
    };
    let sip = visit.client.sip(parcels, most);
    if dice.one_in(6) {
        pause(dice, 6).await;
        drop(sip);
        return Ok(());
    }
    let taken = sip.await?;
    ensure!(taken == most, "{taken} of {most} were taken");
    Ok(())
}

async fn both_ways(visit: &Visit, dice: &mut Dice) -> Result<()> {
    let many = 1 + dice.below(16);
    let sent: Vec<_> = (0..many)
        .map(|_| draw(visit, dice))
        .collect::<Result<_>>()?;
    let mut came = visit.client.through(stream::iter(sent.clone()));
    let until = if dice.one_in(3) {
        dice.below(many)
    } else {
        many
    };
    for parcel in sent.iter().take(until as usize) {
        let Some(echo) = came.next().await else {
            bail!("a stream there and back ended early");
        };
        right(echo?.check_is(parcel.number, parcel.tensor.byte_len() as u64))?;
    }
    Ok(())
}

async fn references(visit: &Visit, dice: &mut Dice) -> Result<()> {
    let parcel = draw(visit, dice)?;
    let kept = visit.client.keep(&parcel).await?;
    let other = kept.clone();
    drop(kept);
    if dice.one_in(3) {
        return Ok(());
    }
    let fetched = other.fetch().await?;
    right(fetched.check_is(parcel.number, parcel.tensor.byte_len() as u64))?;
    let next = visit.client.next(&other).await?;
    drop(other);
    // Asked for, and not awaited.
    drop(next.fetch());
    Ok(())
}

async fn promises(visit: &Visit, dice: &mut Dice) -> Result<()> {
    let parcel = draw(visit, dice)?;
    let mut last = visit.client.keep(&parcel);
    let many = 1 + dice.below(12);
    for _ in 0..many {
        last = visit.client.next(&last);
    }
    if dice.one_in(3) {
        pause(dice, 3).await;
        return Ok(());
    }
    let fetched = last.await?.fetch().await?;
    let number = parcel.number.wrapping_add(many);
    right(fetched.check_is(number, parcel.tensor.byte_len() as u64))
}

async fn back(visit: &Visit, dice: &mut Dice) -> Result<()> {
    let depth = 1 + dice.below(8) as u32;
    let call = visit.client.back(depth);
    if dice.one_in(6) {
        pause(dice, 2).await;
        return Ok(());
    }
    let deep = call.await?;
    ensure!(deep == depth, "called back {deep} times of {depth}");
    Ok(())
}

/// Sends a value to the other process, which sends it back if it `is_met`.
pub(super) async fn rendezvous(visit: &Visit, dice: &mut Dice, is_met: bool) -> Result<()> {
    let (meet, step) = (&visit.site.hand.rendezvous, visit.site.step());
    let parcel = draw(visit, dice)?;
    let forgotten = meet.key_to(SERVER, "forgotten", step)?;
    meet.send(&forgotten, Value::dead())?;
    if !is_met {
        meet.send(&meet.key_to(SERVER, PING, step)?, &parcel.tensor)?;
    } else {
        let pong = meet.key_from(SERVER, PONG, step).await?;
        let came = meet.recv(&pong);
        let relay = visit.client.relay(step);
        meet.send(&meet.key_to(SERVER, PING, step)?, &parcel.tensor)?;
        relay.await?;
        let came = Parcel {
            number: parcel.number,
            tensor: came.await?.tensor,
        };
        right(came.check_is(parcel.number, parcel.tensor.byte_len() as u64))?;
    }
    meet.finish(step);
    visit.client.finish(step).await?;
    Ok(())
}

/// The pipes of replicas are cut now and then ([`super::watch`]): what may be done twice comes through, mostly; what
/// may not says that it was lost.
async fn replicas(visit: &Visit, dice: &mut Dice) -> Result<()> {
    for _ in 0..=dice.below(8) {
        let parcel = draw(visit, dice)?;
        let echo = match dice.one_in(2) {
            true => visit.surviving.again(&parcel).await,
            false => visit.surviving.echo(&parcel).await,
        };
        match echo {
            Ok(echo) => right(echo.check_is(parcel.number, parcel.tensor.byte_len() as u64))?,
            Err(CallError::Connection { .. } | CallError::Unavailable { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn draw(visit: &Visit, dice: &mut Dice) -> Result<Parcel> {
    let hand = &visit.site.hand;
    Parcel::draw(&hand.context, dice, hand.largest).map_err(anyhow::Error::msg)
}

fn right(checked: Result<(), String>) -> Result<()> {
    checked.map_err(anyhow::Error::msg)
}

/// Some milliseconds, or none.
async fn pause(dice: &mut Dice, most: u64) {
    match dice.below(most + 1) {
        0 => {}
        ms => tokio::time::sleep(Duration::from_millis(ms)).await,
    }
}

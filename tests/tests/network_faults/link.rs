//! Two network namespaces with a TUN device each, and a thread that carries packets from one to the other, as it is told.

#![allow(unsafe_code, reason = "devices are made and polled by system calls")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};

/// What becomes of packets; the directions are that from the client and that to it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    /// Of 1000.
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
    /// Each is late by up to twice this: so some overtake others.
    pub(crate) delay: Duration,
    /// Longer ones vanish.
    pub(crate) longest: Option<usize>,
    /// No packet of these directions arrives.
    pub(crate) cut: [bool; 2],
    /// Nothing of the TCP connection of this number arrives, in the order in which they came.
    pub(crate) lane: Option<usize>,
}

/// One end.
struct End {
    device: File,
    namespace: File,
}

pub(crate) struct Link {
    ends: [File; 2],
    weather: Arc<Mutex<Weather>>,
    over: Arc<AtomicBool>,
}

/// The server's address.
pub(crate) const SERVER: &str = "10.77.0.2";

impl Link {
    /// A link in good weather.
    pub(crate) fn new(seed: u64) -> io::Result<Self> {
        let end = |number: usize| {
            // A namespace is a thread's; the devices and their names outlive it.
            let made = std::thread::spawn(move || End::new(number));
            made.join().expect("no panic")
        };
        let (client, server) = (end(1)?, end(2)?);
        let (weather, over) = (
            Arc::<Mutex<Weather>>::default(),
            Arc::<AtomicBool>::default(),
        );
        let devices = [client.device, server.device];
        let (told, ended) = (weather.clone(), over.clone());
        std::thread::spawn(move || carry(devices, &told, &ended, seed));
        Ok(Self {
            ends: [client.namespace, server.namespace],
            weather,
            over,
        })
    }

    pub(crate) fn becomes(&self, weather: Weather) {
        *self.weather.lock().unwrap() = weather;
    }

    /// The argument of `nsenter` for an end: 0 the client's, 1 the server's.
    pub(crate) fn inside(&self, end: usize) -> String {
        let fd = self.ends[end].as_raw_fd();
        format!("--net=/proc/{}/fd/{fd}", std::process::id())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl End {
    fn new(number: usize) -> io::Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let mut options = OpenOptions::new();
        let options = options
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK);
        let device = options.open("/dev/net/tun")?;
        // SAFETY: zeros are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(b"tun0") {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the request lives until the call has returned.
        if unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        for words in [
            "link set lo up".to_owned(),
            format!("addr add 10.77.0.{number}/24 dev tun0"),
            "link set tun0 up".to_owned(),
        ] {
            let done = Command::new("ip").args(words.split(' ')).status()?;
            if !done.success() {
                return Err(io::Error::other(format!("ip {words}: {done}")));
            }
        }
        let namespace = File::open("/proc/thread-self/ns/net")?;
        Ok(Self { device, namespace })
    }
}

/// From a seed, the same each time (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides.max(1)
    }
}

fn carry(mut devices: [File; 2], weather: &Mutex<Weather>, over: &AtomicBool, seed: u64) {
    let mut dice = Dice(seed | 1 << 32);
    let mut late = BinaryHeap::new();
    let mut number = 0_u64;
    let mut packet = [0; 2048];
    // The client's ports, in the order in which they came.
    let mut ports = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let mut fds = [0, 1].map(|end: usize| libc::pollfd {
            fd: devices[end].as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: both live until the call has returned.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, if late.is_empty() { 20 } else { 1 }) };
        let now = Instant::now();
        let weather = *weather.lock().unwrap();
        for from in [0, 1] {
            while let Ok(len) = devices[from].read(&mut packet) {
                let copies = 1 + u64::from(dice.roll(1000) < weather.repeated);
                let at = if from == 0 { 20 } else { 22 };
                let port = [packet[at], packet[at + 1]];
                let lane = ports.iter().position(|known| *known == port);
                // IPv4, and of TCP.
                if lane.is_none() && packet[0] >> 4 == 4 && packet[9] == 6 {
                    ports.push(port);
                }
                let is_lost = weather.cut[from]
                    || (lane.is_some() && lane == weather.lane)
                    || dice.roll(1000) < weather.lost
                    || weather.longest.is_some_and(|longest| len > longest);
                for _ in 0..if is_lost { 0 } else { copies } {
                    let micros = dice.roll(2 * weather.delay.as_micros() as u64);
                    let due = now + Duration::from_micros(micros);
                    number += 1;
                    late.push(Reverse((due, number, 1 - from, packet[..len].to_vec())));
                }
            }
        }
        while let Some(Reverse((due, ..))) = late.peek()
            && *due <= Instant::now()
        {
            if let Some(Reverse((_, _, to, bytes))) = late.pop() {
                // A full device loses it, as networks do.
                let _ = devices[to].write(&bytes);
            }
        }
    }
}

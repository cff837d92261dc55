//! Two network namespaces with a TUN device each, and a thread that carries packets from one to the other, as it is told.

#![allow(unsafe_code, reason = "devices are made and polled by system calls")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
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
    /// Longer ones come back, as a router sends them back (ICMP: fragmentation needed).
    pub(crate) mtu: Option<u16>,
    /// No packet of these directions arrives, from then on.
    pub(crate) cut: [bool; 2],
    pub(crate) since: Since,
    /// Nothing of the TCP connection of this number arrives, in the order in which they came.
    pub(crate) lane: Option<usize>,
    /// Nothing from or to this port of the server's arrives.
    pub(crate) port: Option<u16>,
}

/// When a cut begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Since {
    #[default]
    Now,
    /// So many bytes of data have come from the client, in TCP packets. A cut takes the one with the last of them, too.
    Bytes(u64),
    /// There have been so many TCP connections, the newest of which is cut with its first packet.
    Connections(usize),
}

/// What a link does to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Loses,
    Repeats,
    LetsOvertake,
    SwallowsLong,
    SendsBack,
    CutsFromClient,
    CutsFromServer,
    CutsLane,
    CutsPort,
}

impl Deed {
    const ALL: [Self; 9] = [
        Self::Loses,
        Self::Repeats,
        Self::LetsOvertake,
        Self::SwallowsLong,
        Self::SendsBack,
        Self::CutsFromClient,
        Self::CutsFromServer,
        Self::CutsLane,
        Self::CutsPort,
    ];
}

/// What a link has seen and done.
#[derive(Debug, Default)]
struct Account {
    /// How often it has done each, in the order of [`Deed::ALL`].
    deeds: [AtomicU64; Deed::ALL.len()],
    /// Of TCP.
    connections: AtomicUsize,
}

impl Account {
    fn did(&self, deed: Deed) {
        self.deeds[deed as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl Weather {
    /// What it asks of a link.
    fn asks_for(&self, deed: Deed) -> bool {
        match deed {
            Deed::Loses => self.lost > 0,
            Deed::Repeats => self.repeated > 0,
            Deed::LetsOvertake => !self.delay.is_zero(),
            Deed::SwallowsLong => self.longest.is_some(),
            Deed::SendsBack => self.mtu.is_some(),
            Deed::CutsFromClient => self.cut[0],
            Deed::CutsFromServer => self.cut[1],
            Deed::CutsLane => self.lane.is_some(),
            Deed::CutsPort => self.port.is_some(),
        }
    }
}

/// One end.
struct End {
    device: File,
    namespace: File,
}

pub(crate) struct Link {
    ends: [File; 2],
    weather: Arc<Mutex<Weather>>,
    account: Arc<Account>,
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
        let link = Self {
            ends: [client.namespace, server.namespace],
            weather: Arc::default(),
            account: Arc::default(),
            over: Arc::default(),
        };
        let carrier = Carrier {
            devices: [client.device, server.device],
            account: link.account.clone(),
            dice: Rng::with_seed(seed),
            ports: Vec::new(),
            bytes: 0,
        };
        let (weather, over) = (link.weather.clone(), link.over.clone());
        std::thread::spawn(move || carrier.carry(&weather, &over));
        Ok(link)
    }

    pub(crate) fn becomes(&self, weather: Weather) {
        *self.weather.lock().unwrap() = weather;
    }

    /// What this weather asks for and the link has done to no packet.
    pub(crate) fn left_undone(&self, weather: &Weather) -> Vec<Deed> {
        let is_undone = |deed: &Deed| {
            let done = self.account.deeds[*deed as usize].load(Ordering::Relaxed);
            weather.asks_for(*deed) && done == 0
        };
        Deed::ALL.into_iter().filter(is_undone).collect()
    }

    /// Whether it has done something to a packet.
    pub(crate) fn has_struck(&self) -> bool {
        let mut deeds = self.account.deeds.iter();
        deeds.any(|deed| deed.load(Ordering::Relaxed) > 0)
    }

    /// How many connections there have been.
    pub(crate) fn connections(&self) -> usize {
        self.account.connections.load(Ordering::Relaxed)
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

/// Carries packets.
struct Carrier {
    devices: [File; 2],
    account: Arc<Account>,
    dice: Rng,
    /// The client's, in the order in which they came.
    ports: Vec<[u8; 2]>,
    /// That have come from the client and were not cut.
    bytes: u64,
}

impl Carrier {
    fn carry(mut self, weather: &Mutex<Weather>, over: &AtomicBool) {
        let mut late = BinaryHeap::new();
        let mut number = 0_u64;
        let mut newest = [0; 2];
        let mut packet = [0; 2048];
        while !over.load(Ordering::Relaxed) {
            let mut fds = [0, 1].map(|end: usize| libc::pollfd {
                fd: self.devices[end].as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            });
            // SAFETY: both live until the call has returned.
            unsafe { libc::poll(fds.as_mut_ptr(), 2, if late.is_empty() { 20 } else { 1 }) };
            let now = Instant::now();
            let weather = *weather.lock().unwrap();
            for from in [0, 1] {
                while let Ok(len) = self.devices[from].read(&mut packet) {
                    let packet = &packet[..len];
                    if let Some(deed) = self.stops(&weather, from, packet) {
                        self.account.did(deed);
                        continue;
                    }
                    let repeats = self.dice.u64(..1000) < weather.repeated;
                    if repeats {
                        self.account.did(Deed::Repeats);
                    }
                    for _ in 0..1 + u64::from(repeats) {
                        let micros = self.dice.u64(..=2 * weather.delay.as_micros() as u64);
                        let due = now + Duration::from_micros(micros);
                        number += 1;
                        late.push(Reverse((due, number, 1 - from, packet.to_vec())));
                    }
                }
            }
            while let Some(Reverse((due, ..))) = late.peek()
                && *due <= Instant::now()
            {
                if let Some(Reverse((_, number, to, bytes))) = late.pop() {
                    if number < newest[to] {
                        self.account.did(Deed::LetsOvertake);
                    }
                    newest[to] = newest[to].max(number);
                    // A full device loses it, as networks do.
                    let _ = self.devices[to].write(&bytes);
                }
            }
        }
    }

    /// What keeps a packet of TCP from arriving because of its connection; a new one is counted.
    fn of_tcp(&mut self, weather: &Weather, from: usize, packet: &[u8]) -> Option<Deed> {
        // The ports follow.
        if is_tcp(packet) {
            let (source, destination) = ([packet[20], packet[21]], [packet[22], packet[23]]);
            let (client, server) = match from {
                0 => (source, destination),
                _ => (destination, source),
            };
            let lane = self.ports.iter().position(|known| *known == client);
            if lane.is_none() {
                self.ports.push(client);
                self.account.connections.fetch_add(1, Ordering::Relaxed);
            }
            if lane.is_some() && lane == weather.lane {
                return Some(Deed::CutsLane);
            }
            if weather.port == Some(u16::from_be_bytes(server)) {
                return Some(Deed::CutsPort);
            }
        }
        None
    }

    /// What keeps a packet from arriving, if something does.
    fn stops(&mut self, weather: &Weather, from: usize, packet: &[u8]) -> Option<Deed> {
        let of_tcp = self.of_tcp(weather, from, packet);
        if from == 0 {
            self.bytes += data_of(packet);
        }
        let has_begun = match weather.since {
            Since::Now => true,
            Since::Bytes(bytes) => self.bytes >= bytes,
            Since::Connections(connections) => self.ports.len() >= connections,
        };
        if weather.cut[from] && has_begun {
            return Some([Deed::CutsFromClient, Deed::CutsFromServer][from]);
        }
        if of_tcp.is_some() {
            return of_tcp;
        }
        if self.dice.u64(..1000) < weather.lost {
            return Some(Deed::Loses);
        }
        if weather
            .longest
            .is_some_and(|longest| packet.len() > longest)
        {
            return Some(Deed::SwallowsLong);
        }
        let mtu = weather.mtu.filter(|mtu| packet.len() > usize::from(*mtu))?;
        let _ = self.devices[from].write(&too_big(packet, mtu));
        Some(Deed::SendsBack)
    }
}

/// Whether it is IPv4 without options, and of TCP.
fn is_tcp(packet: &[u8]) -> bool {
    packet.len() >= 40 && packet[0] == 0x45 && packet[9] == 6
}

/// How many bytes of data a packet of TCP has.
fn data_of(packet: &[u8]) -> u64 {
    match is_tcp(packet) {
        true => (packet.len() as u64).saturating_sub(20 + 4 * u64::from(packet[32] >> 4)),
        false => 0,
    }
}

/// What a router says to the sender of a packet that is longer than the next link takes (RFC 792, RFC 1191).
fn too_big(packet: &[u8], mtu: u16) -> Vec<u8> {
    let mut icmp = vec![3, 4, 0, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(&packet[..28]);
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum);
    let len = (20 + icmp.len() as u16).to_be_bytes();
    let mut ip = vec![0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, 1, 0, 0];
    // From whom it was sent to, to who has sent it.
    ip.extend(&packet[16..20]);
    ip.extend(&packet[12..16]);
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    [ip, icmp].concat()
}

/// That of IP (RFC 1071), of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes
        .chunks_exact(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let mut sum: u32 = words.map(u32::from).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

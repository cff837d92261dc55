//! The devices' memory: which blocks there are, and which of their bytes work may touch.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};

use cudarc::driver::sys::{CUdeviceptr, CUresult};

use crate::machine::Machine;
use crate::streams::Position;

/// What memory holds that nobody has written.
pub(crate) const GARBAGE: u8 = 0xdd;

/// Device addresses are no canonical ones: whoever uses one as a pointer dies.
const ADDRESSES: u64 = 0x1100_0000_0000_0000;

/// Allocations lie apart, so that a copy beyond the end of one is seen.
const APART: u64 = 1 << 21;

/// All of it, by its addresses.
#[derive(Default)]
pub(crate) struct Memory {
    blocks: BTreeMap<CUdeviceptr, Block>,
    next: u64,
}

pub(crate) struct Block {
    pub(crate) device: u32,
    pub(crate) len: usize,
    bytes: Bytes,
    /// It is there behind this.
    since: Option<Position>,
    /// Devices that were let in.
    pub(crate) reached: BTreeSet<u32>,
    /// Its release is queued.
    pub(crate) is_released: bool,
    /// It went with its device's context.
    is_lost: bool,
}

/// Memory of this process's, or of a file that others have mapped, too.
pub(crate) enum Bytes {
    Own(Vec<u8>),
    Mapped(usize, usize),
}

impl Bytes {
    pub(crate) fn of_file(file: &File, len: usize) -> Option<Self> {
        Some(Self::Mapped(
            crate::physical::map(file, len)?.expose_provenance(),
            len,
        ))
    }

    fn all(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Mapped(start, len) => {
                let start = std::ptr::with_exposed_provenance_mut(*start);
                // SAFETY: mapped in `of_file`, as long. Other processes touch it when their streams do: as a device's memory is touched.
                unsafe { std::slice::from_raw_parts_mut(start, *len) }
            }
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Self::Mapped(start, len) = *self {
            let start = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: mapped in `of_file`, and touched by nobody from now on.
            unsafe { libc::munmap(start, len) };
        }
    }
}

impl Machine {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of a device that are in use: by this process, and physical memory by all.
    pub(crate) fn used(&self, device: u32) -> u64 {
        let memory = self.memory();
        let own = memory
            .blocks
            .values()
            .filter(|block| block.device == device && matches!(block.bytes, Bytes::Own(_)));
        let own: u64 = own.map(|block| block.len as u64).sum();
        drop(memory);
        own + crate::physical::used(device)
    }

    pub(crate) fn allocate(
        &self,
        device: u32,
        len: usize,
        since: Option<Position>,
    ) -> Result<CUdeviceptr, CUresult> {
        if len == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if self.used(device) + len as u64 > self.capacity {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let address = self.reserve(len);
        let block = Block {
            device,
            len,
            bytes: Bytes::Own(vec![GARBAGE; len]),
            since,
            reached: BTreeSet::from([device]),
            is_released: false,
            is_lost: false,
        };
        self.memory().blocks.insert(address, block);
        Ok(address)
    }

    /// Addresses that nobody has had.
    pub(crate) fn reserve(&self, len: usize) -> CUdeviceptr {
        let mut memory = self.memory();
        let address = ADDRESSES + memory.next;
        memory.next += (len as u64).next_multiple_of(APART) + APART;
        address
    }

    /// Maps physical memory there, unless something is there already.
    pub(crate) fn map(
        &self,
        address: CUdeviceptr,
        device: u32,
        len: usize,
        bytes: Bytes,
    ) -> Result<(), CUresult> {
        let block = Block {
            device,
            len,
            bytes,
            since: None,
            reached: BTreeSet::new(),
            is_released: false,
            is_lost: false,
        };
        let mut memory = self.memory();
        if memory.is_used(address, len) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        memory.blocks.insert(address, block);
        Ok(())
    }

    /// Whether anything lies there.
    pub(crate) fn is_used(&self, address: CUdeviceptr, len: usize) -> bool {
        self.memory().is_used(address, len)
    }

    /// Lets `look` see each block of a range, which must hold all of it.
    pub(crate) fn blocks(
        &self,
        address: CUdeviceptr,
        len: usize,
        look: impl Fn(&mut Block),
    ) -> Result<(), CUresult> {
        let mut memory = self.memory();
        let range = address..address + len as u64;
        let mut held = 0;
        for (_, block) in memory.blocks.range_mut(range) {
            look(block);
            held += block.len;
        }
        match held == len {
            true => Ok(()),
            false => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Unmaps each block of a range.
    pub(crate) fn unmap(&self, address: CUdeviceptr, len: usize) -> Result<(), CUresult> {
        self.blocks(address, len, |_| ())?;
        let range = address..address + len as u64;
        let mut memory = self.memory();
        let gone: Vec<_> = memory.blocks.extract_if(range, |_, _| true).collect();
        drop(memory);
        drop(gone);
        Ok(())
    }

    /// A device's context is gone, and with it what is there, but for what is about to go.
    pub(crate) fn lose(&self, device: u32) {
        let mut memory = self.memory();
        let here = memory.blocks.values_mut();
        let here = here.filter(|block| block.device == device && !block.is_released);
        here.for_each(|block| block.is_lost = true);
    }

    /// Lets `look` see the block that begins at this address.
    pub(crate) fn block<R>(
        &self,
        address: CUdeviceptr,
        look: impl FnOnce(&mut Block) -> R,
    ) -> Result<R, CUresult> {
        let mut memory = self.memory();
        let block = memory.blocks.get_mut(&address);
        block.map(look).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// The device on which an address lies.
    pub(crate) fn device_of(&self, address: CUdeviceptr) -> Option<u32> {
        let memory = self.memory();
        let (start, block) = memory.blocks.range(..=address).next_back()?;
        (address - start < block.len as u64).then_some(block.device)
    }

    pub(crate) fn free(&self, address: CUdeviceptr) -> Result<(), CUresult> {
        let block = self.memory().blocks.remove(&address);
        block.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Work touches these bytes now: those of one block, or of several that are mapped one behind the other. `by` a device, but for copies
    /// between two, which go by way of main memory if need be.
    pub(crate) fn touch(
        &self,
        by: Option<u32>,
        address: CUdeviceptr,
        len: usize,
        what: &str,
        act: impl FnOnce(&mut [u8]),
    ) {
        let mut memory = self.memory();
        let pieces = match memory.pieces(by, address, len) {
            Ok(pieces) => pieces,
            Err(why) => {
                drop(memory);
                self.fault(format!("{what}: {why}"));
                return;
            }
        };
        if let [(start, range)] = &pieces[..] {
            return act(memory.bytes(*start, range));
        }
        let mut all = Vec::with_capacity(len);
        for (start, range) in &pieces {
            all.extend_from_slice(memory.bytes(*start, range));
        }
        act(&mut all);
        let mut rest = &all[..];
        for (start, range) in &pieces {
            let (here, behind) = rest.split_at(range.len());
            memory.bytes(*start, range).copy_from_slice(here);
            rest = behind;
        }
    }
}

impl Memory {
    fn is_used(&self, address: CUdeviceptr, len: usize) -> bool {
        let before = self.blocks.range(..address + len as u64).next_back();
        before.is_some_and(|(start, block)| start + block.len as u64 > address)
    }

    /// The blocks that so many bytes lie in, by their start, and where there; why work may not touch them.
    fn pieces(
        &self,
        by: Option<u32>,
        address: CUdeviceptr,
        len: usize,
    ) -> Result<Vec<(CUdeviceptr, Range<usize>)>, String> {
        let (mut pieces, mut at, mut left) = (Vec::new(), address, len);
        loop {
            let found = self.blocks.range(..=at).next_back();
            let found = found.and_then(|(start, block)| {
                let begin = usize::try_from(at - start).ok()?;
                (begin + left.min(1) <= block.len).then_some((*start, block, begin))
            });
            let Some((start, block, begin)) = found else {
                return Err(format!("{len} bytes at {address:#x} are not allocated"));
            };
            let is_early = |since: &Position| !since.is_reached();
            if block.since.as_ref().is_some_and(is_early) {
                return Err(format!("{address:#x} is used before its allocation"));
            }
            if block.is_lost {
                return Err(format!("the context of {address:#x} is gone"));
            }
            let by = by.unwrap_or(block.device);
            if !block.reached.contains(&by) {
                return Err(format!("device {by} may not reach {address:#x}"));
            }
            let here = left.min(block.len - begin);
            pieces.push((start, begin..begin + here));
            left -= here;
            at += here as u64;
            if left == 0 {
                return Ok(pieces);
            }
        }
    }

    /// Bytes of a block that there is.
    fn bytes(&mut self, start: CUdeviceptr, range: &Range<usize>) -> &mut [u8] {
        let block = self.blocks.get_mut(&start);
        let all = block.map_or(&mut [][..], |block| block.bytes.all());
        &mut all[range.clone()]
    }
}

//! A counting allocator: bytes held now, the most held, and allocations made.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it is; counting touches
// atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Bytes held now.
pub fn held() -> usize {
    HELD.load(Relaxed)
}

/// Allocations made so far.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Relaxed)
}

/// The growth of the heap, at its highest, while `work` runs.
pub fn peak_growth(work: impl FnOnce()) -> usize {
    let before = held();
    PEAK.store(before, Relaxed);
    work();
    PEAK.load(Relaxed) - before
}

//! Work on many items, split over the cores of the machine. The results are in the order of the
//! items, as if one core had done it all.

use std::panic::resume_unwind;
use std::thread;

/// Items of which a thread of their own is worth its start.
const SHARE_MIN: usize = 256;

/// What `work` makes of each item. Blocks until all is done; panics when `work` does.
pub fn map<T, R>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R>
where
    T: Sync,
    R: Send,
{
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let share = items.len().div_ceil(cores).max(SHARE_MIN);
    let Some((own, others)) = items.split_at_checked(share) else {
        return share_of(items, &work);
    };
    let work = &work;
    thread::scope(|scope| {
        let run = |share| scope.spawn(move || share_of(share, work));
        let threads: Vec<_> = others.chunks(share).map(run).collect();
        let mut done = Vec::with_capacity(items.len());
        done.extend(share_of(own, work));
        for thread in threads {
            done.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    })
}

fn share_of<T, R>(items: &[T], work: &impl Fn(&T) -> R) -> Vec<R> {
    items.iter().map(work).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_however_many_there_are() {
        for count in [0, 1, SHARE_MIN - 1, SHARE_MIN, SHARE_MIN + 1, 10_007] {
            let items: Vec<usize> = (0..count).collect();
            let doubled: Vec<usize> = items.iter().map(|n| n * 2).collect();
            assert_eq!(map(&items, |n| n * 2), doubled);
        }
    }

    #[test]
    #[should_panic(expected = "the last one")]
    fn a_panic_is_not_lost() {
        let items: Vec<usize> = (0..10_000).collect();
        map(&items, |n| assert!(*n != 9_999, "the last one"));
    }
}

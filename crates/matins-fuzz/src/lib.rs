//! Mutates inputs at random, for the tests of everything that reads foreign text.
//!
//! It must never need more than a stable toolchain. `MATINS_FUZZ_SECONDS` sets how long each
//! target runs (default 2; the long form is 60), `MATINS_FUZZ_SEED` repeats a run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Bytes that break parsers: limits, quotes, controls, halves of characters.
const NASTY: [&[u8]; 24] = [
    b"\0",
    b"\xff\xfe",
    b"\xc3",
    b"\xed\xa0\x80",
    "\u{202e}".as_bytes(),
    "，".as_bytes(),
    "٥".as_bytes(),
    b"18446744073709551616",
    b"-9223372036854775809",
    b"1e999",
    b"NaN",
    b"-0",
    b"\"\\ud800\"",
    b"[[[[[[[[[[[[[[[[",
    b"{\"a\":{\"a\":{\"a\":",
    b"null",
    b"*/0",
    b"L-99",
    b"99999-99999",
    b"&a [*a,*a]",
    b"<<: *x",
    b"\t",
    b"\r\n",
    b"# ",
];

/// Longest input that is made.
const INPUT_BYTES_MAX: usize = 8 << 10;

/// Calls `target` with the seeds and with mutations of them, for as long as is asked for. A panic
/// fails with the input that made it.
pub fn fuzz(seeds: &[&[u8]], target: impl Fn(&[u8])) {
    let seconds = number("MATINS_FUZZ_SECONDS").unwrap_or(2);
    let seed = number("MATINS_FUZZ_SEED").unwrap_or_else(rand::random);
    let mut dice = StdRng::seed_from_u64(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut runs = 0u64;
    for input in seeds {
        call(seed, input, &target);
    }
    let mut corpus: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.to_vec()).collect();
    while Instant::now() < end {
        let mut input = corpus[dice.random_range(0..corpus.len())].clone();
        for _ in 0..dice.random_range(1..6) {
            mutate(&mut input, &corpus, &mut dice);
        }
        input.truncate(INPUT_BYTES_MAX);
        call(seed, &input, &target);
        runs += 1;
        // Mutations of mutations reach further than mutations of seeds.
        if runs.is_multiple_of(64) && corpus.len() < 4_096 {
            corpus.push(input);
        }
    }
    println!("{runs} runs in {seconds} s with MATINS_FUZZ_SEED={seed}");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn call(seed: u64, input: &[u8], target: &impl Fn(&[u8])) {
    let done = catch_unwind(AssertUnwindSafe(|| target(input)));
    assert!(
        done.is_ok(),
        "MATINS_FUZZ_SEED={seed}: panicked on {:?}",
        String::from_utf8_lossy(input)
    );
}

fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], dice: &mut StdRng) {
    let at = if input.is_empty() { 0 } else { dice.random_range(0..=input.len()) };
    let len = dice.random_range(1..=8).min(input.len() - at);
    match dice.random_range(0..7u32) {
        0 if at < input.len() => input[at] ^= 1 << dice.random_range(0..8),
        1 => {
            input.drain(at..at + len);
        }
        2 => {
            let piece = NASTY[dice.random_range(0..NASTY.len())];
            input.splice(at..at, piece.iter().copied());
        }
        3 => {
            let piece = input[at..at + len].to_vec();
            for _ in 0..dice.random_range(1..20) {
                input.splice(at..at, piece.iter().copied());
            }
        }
        4 => {
            let other = &corpus[dice.random_range(0..corpus.len())];
            let from = dice.random_range(0..=other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        5 => input.splice(at..at + len, dice.random::<u64>().to_string().bytes()).for_each(drop),
        _ => input.insert(at, dice.random()),
    }
}

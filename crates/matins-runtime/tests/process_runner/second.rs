//! A second Matins in a process of its own, to be stopped and killed.

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use matins_runtime::process::{Lease, Moment, adopt_orphans};

use crate::witness::{block_on, finish, shell};

pub(crate) const WORD: &str = "__second";

/// Runs a shell text under it: with a lease that nobody renews when `lease` is not zero, and
/// adopting orphans when asked.
pub(crate) fn start(text: &str, lease: Duration, grace: Duration, adopt: bool) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([WORD, &lease.as_millis().to_string(), &grace.as_millis().to_string()])
        .args([&adopt.to_string(), text])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

pub(crate) fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(2).collect();
    let [lease, grace, adopt, text] = &words[..] else { return ExitCode::from(2) };
    let millis = |word: &String| Duration::from_millis(word.parse().unwrap());
    if adopt == "true" {
        adopt_orphans().unwrap();
    }
    let mut spec = shell(text);
    spec.grace = millis(grace);
    let lease = millis(lease);
    spec.lease = (!lease.is_zero())
        .then(|| Lease { deadline: Moment::now().after(lease), grace: spec.grace });
    let exit = block_on(finish(spec));
    println!("{:?} survivors {}", exit.end, exit.survivors);
    ExitCode::SUCCESS
}

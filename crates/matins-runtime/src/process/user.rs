//! Whom a command runs as.

use std::fs;
use std::process::Command;

pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) name: String,
    pub(super) home: String,
    pub(super) shell: String,
}

/// Looks a name or a numeric id up: first in `/etc/passwd`, then where `getent` knows it from.
pub(super) fn find(wanted: &str) -> Result<User, String> {
    let local = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if let Some(user) = local.lines().find_map(|line| entry(line, wanted)) {
        return Ok(user);
    }
    let asked = Command::new("getent").args(["passwd", "--", wanted]).output();
    let answer = asked.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&answer)
        .lines()
        .find_map(|line| entry(line, wanted))
        .ok_or_else(|| format!("user {wanted:?} does not exist"))
}

fn entry(line: &str, wanted: &str) -> Option<User> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, _, home, shell] = fields[..] else { return None };
    (name == wanted || uid == wanted).then_some(())?;
    Some(User {
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
        name: name.to_owned(),
        home: home.to_owned(),
        shell: shell.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_by_id() {
        let root = find("root").unwrap();
        assert_eq!((root.uid, root.gid, root.home.as_str()), (0, 0, "/root"));
        assert_eq!(find("0").unwrap().name, "root");
        assert_eq!(find("no-such-user").err().unwrap(), "user \"no-such-user\" does not exist");
    }
}

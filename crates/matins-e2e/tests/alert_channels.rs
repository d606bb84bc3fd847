//! Channels as people change them and as they are by night: another file while something waits,
//! quiet hours, mail over a private line.

use matins_e2e::alerts::{dead_letters_told, die, ok, told, webhook};
use matins_e2e::process::Signal;
use matins_e2e::stub::Answer;
use matins_e2e::wait::seconds;
use matins_e2e::{Server, Stub, eventually, holds_for, json, together};
use matins_testbed::{Authority, Mail, SECURITIES};

#[test]
fn channels() {
    together(&[
        ("a channel is replaced while something waits for it", replaced),
        ("a channel is taken away and nobody is left", taken_away),
        ("quiet hours", quiet_hours),
        ("what lasts over a restart", lasts),
        ("a channel that answers garbage", garbage),
        ("a storm of refusals", storm),
        ("secrets", secrets),
    ]);
}

fn file(channels: &str) -> String {
    format!("alerts: {{channels: {{{channels}}}}}\n")
}

fn reload(server: &Server, config: &str) {
    let before = server.log_text().matches("the configuration is read again").count();
    server.configure(config);
    server.signal(Signal::HUP);
    eventually("the file is read", seconds(20.0), || {
        let now = server.log_text().matches("the configuration is read again").count();
        (now > before).then_some(())
    });
}

fn replaced() {
    let (broken, good) = (Stub::start(|_| Answer::new(503, "")), ok());
    let server = Server::with(&file(&format!("old: {}", webhook(&broken))));
    die(&server.api(), "sync", 3);
    eventually("it is tried", seconds(20.0), || (broken.count() > 0).then_some(()));
    reload(&server, &file(&format!("new: {}", webhook(&good))));
    eventually("the new one is told", seconds(30.0), || (good.count() > 0).then_some(()));
    holds_for("once", seconds(5.0), || good.count() == 1);
    assert_eq!(told(&good), [("dead_letter".to_owned(), "sync".to_owned(), 3, false)]);
    let tried = broken.count();
    die(&server.api(), "other", 1);
    eventually("it goes on", seconds(20.0), || (dead_letters_told(&good) == 4).then_some(()));
    assert_eq!(broken.count(), tried, "the old one is left alone");
}

/// What nobody could be told waits for whoever comes.
fn taken_away() {
    let (broken, good) = (Stub::start(|_| Answer::new(503, "")), ok());
    let mut server = Server::with(&file(&format!("old: {}", webhook(&broken))));
    die(&server.api(), "sync", 2);
    eventually("it is tried", seconds(20.0), || (broken.count() > 0).then_some(()));
    reload(&server, "");
    server.restart();
    die(&server.api(), "other", 1);
    reload(&server, &file(&format!("new: {}", webhook(&good))));
    eventually("all is told", seconds(40.0), || (dead_letters_told(&good) == 3).then_some(()));
    holds_for("once", seconds(5.0), || dead_letters_told(&good) == 3);
}

fn quiet_hours() {
    let stub = ok();
    // Kiritimati is where the day begins: the hours are counted there, and not here.
    let zone = "Pacific/Kiritimati";
    let now = jiff::Timestamp::now().in_tz(zone).expect("a zone");
    let clock = |hours: i64| {
        let at = now.checked_add(jiff::Span::new().hours(hours)).expect("an instant");
        at.strftime("%H:%M").to_string()
    };
    let quiet = |from: i64, to: i64| {
        let (from, to) = (clock(from), clock(to));
        let hours = format!("{{from: \"{from}\", to: \"{to}\", timezone: {zone}}}");
        let url = stub.url("/hook");
        let channel = format!("ops: {{kind: webhook, url: \"{url}\", quiet: {hours}}}");
        // What is critical is told all the same.
        file(&channel)
            .replace("}}\n", "}, rules: {dead_letters: {above: 2, severity: critical}}}\n")
    };
    let server = Server::with(&quiet(-2, 2));
    die(&server.api(), "sync", 2);
    holds_for("it is quiet", seconds(8.0), || stub.count() == 0);
    die(&server.api(), "other", 2);
    eventually("what is critical is told", seconds(30.0), || (stub.count() == 1).then_some(()));
    assert_eq!(told(&stub)[0].0, "dead_letters");
    reload(&server, &quiet(2, 4));
    eventually("the rest in the morning", seconds(30.0), || {
        (dead_letters_told(&stub) == 4).then_some(())
    });
    holds_for("once", seconds(5.0), || dead_letters_told(&stub) == 4);
}

/// A state that was told before a restart, and that ends while nobody looks.
fn lasts() {
    let stub = ok();
    let rules = "rules: {no_worker: {after: 2s}}";
    let mut server =
        Server::with(&format!("alerts: {{channels: {{ops: {}}}, {rules}}}\n", webhook(&stub)));
    let id = server.api().enqueue(&json!({"type": "nobody_runs_this"})).id().to_owned();
    eventually("it is told", seconds(40.0), || (stub.count() == 1).then_some(()));
    server.stop(seconds(30.0));
    server.cli(&["cancel", &id]).expect(0);
    server.start();
    eventually("its end is told", seconds(60.0), || (stub.count() == 2).then_some(()));
    let matter = ("no_worker".to_owned(), "nobody_runs_this".to_owned());
    let expected = [(1, false), (0, true)];
    let expected = expected.map(|(n, over)| (matter.0.clone(), matter.1.clone(), n, over));
    assert_eq!(told(&stub), expected);
}

fn garbage() {
    let answers: [&[u8]; 5] =
        [b"", b"\xff\xfe\x00", b"{\"errcode\": \"zero\"}", b"[1,2", b"{\"errcode\":1e400}"];
    let next = std::sync::atomic::AtomicUsize::new(0);
    let robot = Stub::start(move |_| {
        let n = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Answer::new(200, answers[n % answers.len()])
    });
    let long = Stub::start(|_| Answer::new(500, vec![b'x'; 4 << 20]));
    let good = ok();
    let config = file(&format!(
        "ding: {{kind: dingtalk, url: \"{}\"}}, long: {}, good: {}",
        robot.url("/send"),
        webhook(&long),
        webhook(&good)
    ));
    let server = Server::with(&config);
    die(&server.api(), "sync", 1);
    eventually("the good one is told", seconds(20.0), || (good.count() >= 1).then_some(()));
    eventually("the robot is tried again", seconds(60.0), || (robot.count() >= 3).then_some(()));
    let api = server.api();
    let sent = api.metric("matins_alerts_total", "channel=\"ding\",result=\"sent\"");
    assert_eq!(sent, None, "no word of it says that it was delivered");
    server.assert_no_panic();
    let longest = server.log_text().lines().map(str::len).max();
    assert!(longest < Some(2_000), "an answer of 4 MiB is in the log: {longest:?}");
}

/// Who is told to come later again and again is asked ever less, and others are told.
fn storm() {
    let busy = Stub::start(|_| Answer::new(429, "").header("retry-after", "1"));
    let good = ok();
    let config = file(&format!("busy: {}, good: {}", webhook(&busy), webhook(&good)));
    let server = Server::with(&config);
    for n in 0..5 {
        die(&server.api(), &format!("type-{n}"), 1);
    }
    eventually("the good one is told", seconds(30.0), || {
        (dead_letters_told(&good) == 5).then_some(())
    });
    std::thread::sleep(seconds(20.0));
    assert!((1..=4).contains(&busy.count()), "{} calls in 20 s", busy.count());
    assert_eq!(dead_letters_told(&good), 5);
}

/// Every place where a secret may stand has one, nothing is delivered, and everything is logged.
fn secrets() {
    const SECRET: &str = "S3KR1T-42";
    let no = Stub::start(|_| Answer::new(403, "{\"errcode\": 310000, \"code\": 19021}"));
    let url = |path: &str| format!("\"{}?key={SECRET}\"", no.url(path));
    let kinds = [
        format!("wecom: {{kind: wecom, url: {}}}", url("/wecom")),
        format!("dingtalk: {{kind: dingtalk, url: {}, secret: {SECRET}}}", url("/dingtalk")),
        format!("feishu: {{kind: feishu, url: {}, secret: {SECRET}}}", url("/feishu")),
        format!("slack: {{kind: slack, url: {}}}", url("/slack")),
        format!("dead: {{kind: slack, url: \"http://u:{SECRET}@127.0.0.1:9/{SECRET}\"}}"),
        format!("nowhere: {{kind: slack, url: \"http://{SECRET}.invalid/{SECRET}\"}}"),
        format!("pagerduty: {{kind: pagerduty, url: {}, routing_key: {SECRET}}}", url("/pager")),
        format!(
            "webhook: {{kind: webhook, url: {}, secret: {SECRET}, headers: {{Authorization: \
             Bearer {SECRET}}}}}",
            url("/webhook")
        ),
        format!(
            "mail: {{kind: email, server: \"127.0.0.1:9\", security: none, user: u, password: \
             {SECRET}, from: a@example.com, to: [b@example.com]}}"
        ),
    ];
    let config = format!(
        "log: {{level: debug}}\nheartbeat: 1s\nheartbeat_url: {}\ntraces: {{url: {}, headers: \
         {{Authorization: Bearer {SECRET}}}}}\n{}",
        url("/switch"),
        url("/v1/traces"),
        file(&kinds.join(", "))
    );
    let server = Server::with(&config);
    let api = server.api();
    die(&api, "sync", 1);
    eventually("each is tried", seconds(60.0), || {
        let counted = |result: &str| {
            let text = api.outside("/metrics").text();
            let of = format!("result=\"{result}\"");
            text.lines().filter(|l| l.starts_with("matins_alerts_total") && l.contains(&of)).count()
        };
        (counted("off") + counted("failed") + counted("refused") >= kinds.len()).then_some(())
    });
    let mut shown = server.log_text() + &api.outside("/metrics").text();
    for path in ["/alerts", "/status", "/audit", "/workers"] {
        shown += &api.get(path).expect(200).text();
    }
    let commands: [&[&str]; 5] =
        [&["check"], &["doctor", "--json"], &["status"], &["alert", "list"], &["audit"]];
    let tests = kinds.iter().map(|kind| kind.split(':').next().expect("a name"));
    let tests: Vec<[&str; 4]> = tests.map(|name| ["alert", "test", name, "--json"]).collect();
    for words in commands.into_iter().chain(tests.iter().map(|words| &words[..])) {
        let said = server.cli(words);
        shown += &(said.out() + &said.err());
    }
    let found: Vec<&str> = shown.lines().filter(|line| line.contains(SECRET)).collect();
    assert!(found.is_empty(), "{found:#?}");
    // It did reach those who know it.
    assert!(no.calls().iter().any(|call| call.target.contains(SECRET)));
}

/// A real mail server that wants TLS and a login, for both ways of TLS.
#[test]
fn mail_over_a_private_line() {
    let authority = Authority::new("mail");
    let issued = authority.issue("localhost", "DNS:localhost,IP:127.0.0.1");
    let password = "geheim-0815";
    for security in SECURITIES {
        let mail = Mail::start(security, &issued, "matins", password);
        let config = |host: &str, secret: &str| {
            file(&format!(
                "mail: {{kind: email, server: \"{host}:{}\", security: {security}, user: matins, \
                 password: env:{secret}, from: Matins <matins@example.com>, to: \
                 [ops@example.com, \"夜班 <night@example.com>\"], lang: zh-CN}}",
                mail.port()
            ))
        };
        let authorities = authority.cert().display().to_string();
        let variables =
            [("GOOD", password), ("BAD", "geheim-4711"), ("SSL_CERT_FILE", &authorities)];
        let mut server = Server::builder().config(&config("localhost", "GOOD"));
        for (name, value) in variables {
            server = server.variable(name, value);
        }
        let server = server.start();
        let test = |config: &str, variables: &[(&str, &str)], code: i32| {
            let other = Server::builder().config(config).prepare();
            let mut command = other.command();
            command.envs(variables.iter().copied()).args(["alert", "test", "mail", "--json"]);
            let said = matins_e2e::server::run(command, b"").expect(code);
            assert!(
                !(said.out() + &said.err()).contains("geheim"),
                "{} {}",
                said.out(),
                said.err()
            );
            said.json().clone()
        };
        die(&server.api(), "同步订单", 2);
        eventually("the mail", seconds(30.0), || (mail.mails().len() == 1).then_some(()));
        let came = &mail.mails()[0];
        for part in
            ["From: Matins <matins@example.com>", "night@example.com", "同步订单", "403 Forbidden"]
        {
            assert!(came.contains(part), "{security}: {part}: {came}");
        }
        assert_eq!(test(&config("localhost", "GOOD"), &variables, 0)["result"], "sent");
        assert_eq!(mail.mails().len(), 2);
        assert!(!server.log_text().contains(password), "{}", server.log_text());

        // A wrong password shuts it off; a name that the certificate is not for is not trusted, nor
        // is an authority that the host does not know.
        let bad = test(&config("localhost", "BAD"), &variables, 1);
        assert_eq!(bad["result"], "off", "{bad}");
        assert_eq!(
            test(&config("localhost.localdomain", "GOOD"), &variables, 1)["result"],
            "failed"
        );
        assert_eq!(test(&config("localhost", "GOOD"), &variables[..2], 1)["result"], "failed");
        assert_eq!(mail.mails().len(), 2, "{security}: only who could be trusted got a mail");
    }
}

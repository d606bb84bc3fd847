//! The sentences, by rule and language, and the commands that belong to them.

use super::Rule;
use super::channel::Lang;

/// What happened, in one line.
pub(super) fn title(rule: Rule, subject: &str, n: u64, over: bool, lang: Lang) -> String {
    match (lang, over) {
        (Lang::En, false) => begun_en(rule, subject, n),
        (Lang::En, true) => over_en(rule, subject),
        (Lang::ZhCn, false) => begun_zh(rule, subject, n),
        (Lang::ZhCn, true) => over_zh(rule, subject),
    }
}

fn begun_en(rule: Rule, s: &str, n: u64) -> String {
    match rule {
        Rule::DeadLetter if n == 1 => format!("{s}: a task gave up"),
        Rule::DeadLetter => format!("{s}: {n} tasks gave up"),
        Rule::DeadLetters => "too many dead letters wait".to_owned(),
        Rule::Heartbeat => format!("the heartbeat of {s} has stopped"),
        Rule::Stalled => format!("the loop {s} does not turn"),
        Rule::Restarted => format!("{s} was restarted"),
        Rule::CrashLoop => format!("{s} dies again and again"),
        Rule::Missed => format!("schedule {s} missed {n} run(s)"),
        Rule::Overdue => format!("schedule {s} is overdue"),
        Rule::Backlog => format!("pool {s} falls behind"),
        Rule::Store => format!("the store ({s}) does not answer"),
        Rule::Redis => "Redis does not answer".to_owned(),
        Rule::Outage => "the store is away; Redis carries on".to_owned(),
        Rule::WorkerLost => format!("{s} was lost with its tasks"),
        Rule::NoWorker => format!("no worker runs tasks of type {s}"),
        Rule::ClockStep => format!("the clock of {s} was stepped"),
        Rule::Canary => format!("the canary of pool {s} did not come back"),
        Rule::Invariant => format!("the store is not as it must be: {s}"),
        Rule::Ping => format!("{s} did not report"),
        Rule::Channel => format!("alert channel {s} does not deliver"),
        Rule::Test => format!("a test: the channel {s} works"),
    }
}

fn over_en(rule: Rule, s: &str) -> String {
    match rule {
        Rule::DeadLetter => format!("{s}: no task gives up any more"),
        Rule::DeadLetters => "few enough dead letters wait again".to_owned(),
        Rule::Heartbeat => format!("the heartbeat of {s} is back"),
        Rule::Stalled => format!("the loop {s} turns again"),
        Rule::Restarted | Rule::CrashLoop => format!("{s} stays up again"),
        Rule::Missed | Rule::Overdue => format!("schedule {s} runs on time again"),
        Rule::Backlog => format!("pool {s} has caught up"),
        Rule::Store => format!("the store ({s}) answers again"),
        Rule::Redis => "Redis answers again".to_owned(),
        Rule::Outage => "the store is back; all is reconciled".to_owned(),
        Rule::WorkerLost => format!("{s} is back"),
        Rule::NoWorker => format!("a worker runs tasks of type {s} again"),
        Rule::ClockStep => format!("the clock of {s} goes evenly again"),
        Rule::Canary => format!("the canary of pool {s} is back"),
        Rule::Invariant => format!("the store is as it must be again: {s}"),
        Rule::Ping => format!("{s} reports again"),
        Rule::Channel => format!("alert channel {s} delivers again"),
        Rule::Test => format!("the test of {s} is over"),
    }
}

fn begun_zh(rule: Rule, s: &str, n: u64) -> String {
    match rule {
        Rule::DeadLetter if n == 1 => format!("{s}：有任务已放弃"),
        Rule::DeadLetter => format!("{s}：{n} 个任务已放弃"),
        Rule::DeadLetters => "死信过多，等待处理".to_owned(),
        Rule::Heartbeat => format!("{s} 的心跳已停止"),
        Rule::Stalled => format!("循环 {s} 已停转"),
        Rule::Restarted => format!("{s} 已被重启"),
        Rule::CrashLoop => format!("{s} 反复崩溃"),
        Rule::Missed => format!("计划 {s} 错过 {n} 次执行"),
        Rule::Overdue => format!("计划 {s} 已逾期"),
        Rule::Backlog => format!("任务池 {s} 积压"),
        Rule::Store => format!("存储（{s}）无响应"),
        Rule::Redis => "Redis 无响应".to_owned(),
        Rule::Outage => "存储不可用，由 Redis 暂时接管".to_owned(),
        Rule::WorkerLost => format!("{s} 失联，其任务已丢失"),
        Rule::NoWorker => format!("没有工作进程执行类型 {s}"),
        Rule::ClockStep => format!("{s} 的时钟发生跳变"),
        Rule::Canary => format!("任务池 {s} 的探测任务没有返回"),
        Rule::Invariant => format!("存储状态不一致：{s}"),
        Rule::Ping => format!("{s} 没有按时上报"),
        Rule::Channel => format!("告警通道 {s} 无法送达"),
        Rule::Test => format!("测试消息：通道 {s} 正常"),
    }
}

fn over_zh(rule: Rule, s: &str) -> String {
    match rule {
        Rule::DeadLetter => format!("{s}：不再有任务放弃"),
        Rule::DeadLetters => "死信数量已回落".to_owned(),
        Rule::Heartbeat => format!("{s} 的心跳已恢复"),
        Rule::Stalled => format!("循环 {s} 已恢复运转"),
        Rule::Restarted | Rule::CrashLoop => format!("{s} 已稳定运行"),
        Rule::Missed | Rule::Overdue => format!("计划 {s} 已恢复准时"),
        Rule::Backlog => format!("任务池 {s} 积压已消除"),
        Rule::Store => format!("存储（{s}）已恢复"),
        Rule::Redis => "Redis 已恢复".to_owned(),
        Rule::Outage => "存储已恢复，数据已对账".to_owned(),
        Rule::WorkerLost => format!("{s} 已恢复"),
        Rule::NoWorker => format!("类型 {s} 已有工作进程执行"),
        Rule::ClockStep => format!("{s} 的时钟已平稳"),
        Rule::Canary => format!("任务池 {s} 的探测任务已恢复"),
        Rule::Invariant => format!("存储状态已恢复一致：{s}"),
        Rule::Ping => format!("{s} 已恢复上报"),
        Rule::Channel => format!("告警通道 {s} 已恢复"),
        Rule::Test => format!("通道 {s} 的测试已结束"),
    }
}

/// The name of a fact.
pub(super) fn fact(name: &str, lang: Lang) -> &str {
    match (lang, name) {
        (Lang::En, _) => name,
        (Lang::ZhCn, "why") => "原因",
        (Lang::ZhCn, "error") => "错误",
        (Lang::ZhCn, "since") => "开始于",
        (Lang::ZhCn, "task") => "任务",
        (Lang::ZhCn, "tasks") => "任务数",
        (Lang::ZhCn, "pool") => "任务池",
        (Lang::ZhCn, "worker") => "工作进程",
        (Lang::ZhCn, "node") => "节点",
        (Lang::ZhCn, "schedule") => "计划",
        (Lang::ZhCn, "label") => "时刻",
        (Lang::ZhCn, "count") => "数量",
        (Lang::ZhCn, "age") => "时长",
        (Lang::ZhCn, "seconds") => "秒",
        (Lang::ZhCn, "limit") => "上限",
        (Lang::ZhCn, "hint") => "提示",
        (Lang::ZhCn, other) => other,
    }
}

/// What to do, as commands. `subject` is quoted for a shell.
pub(super) fn next(rule: Rule, subject: &str) -> Vec<String> {
    let commands: &[&str] = match rule {
        Rule::DeadLetter | Rule::DeadLetters => &["matins dead list --by-error"],
        Rule::Missed | Rule::Overdue => {
            return vec![
                format!("matins schedule history {subject}"),
                format!("matins schedule show {subject}"),
            ];
        }
        Rule::Backlog | Rule::Canary => &["matins pool list", "matins status"],
        Rule::NoWorker => &["matins node list", "matins list --state pending"],
        Rule::WorkerLost | Rule::Heartbeat => &["matins node list", "matins status"],
        Rule::Channel => return vec![format!("matins alert test {subject}")],
        Rule::Stalled
        | Rule::Restarted
        | Rule::CrashLoop
        | Rule::Store
        | Rule::Redis
        | Rule::Outage
        | Rule::ClockStep
        | Rule::Invariant => &["matins status", "matins doctor"],
        Rule::Ping | Rule::Test => &[],
    };
    commands.iter().map(|command| (*command).to_owned()).collect()
}

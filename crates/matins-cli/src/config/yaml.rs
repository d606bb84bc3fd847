//! YAML as a tree in which every value knows where it was written.
//!
//! Scalars keep their text: what `0010` or `1e3` means is decided by whoever asks for a number,
//! never guessed here. Must never keep the last of two equal keys.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, options};

use super::problem::Problem;

/// Values in a file, aliases counted as often as they are used.
const NODES_MAX: usize = 2_000_000;
const NESTING_MAX: usize = 64;

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Bytes of the file.
    File(Range<usize>),
    /// `environment variable MATINS_LISTEN`, `flag --store`.
    Outside(Arc<str>),
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) value: Value,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

#[derive(Debug, Clone)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    /// Neither quoted nor a block nor tagged `!!str`: may stand for a number, a boolean, nothing.
    pub(crate) plain: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) place: Place,
}

impl Node {
    pub(crate) fn outside(text: &str, origin: &str) -> Self {
        Self {
            place: Place::Outside(origin.into()),
            value: Value::Scalar(Scalar { text: text.to_owned(), plain: true }),
        }
    }

    /// `key:` with nothing behind it, `~` or `null`.
    pub(crate) fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar(scalar) => {
                scalar.plain && matches!(&*scalar.text, "" | "~" | "null" | "Null" | "NULL")
            }
            Value::List(_) | Value::Map(_) => false,
        }
    }

    /// How an error speaks of it.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            _ if self.is_null() => "nothing".to_owned(),
            Value::Scalar(scalar) => {
                let shown: String = scalar.text.chars().take(60).collect();
                if scalar.plain { shown } else { format!("{shown:?}") }
            }
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// Reads one document; `None` for an empty one. Problems that leave a tree are all returned,
/// together with it.
pub(crate) fn parse(source: &str) -> (Option<Node>, Vec<Problem>) {
    let options = options! {
        flow_nesting_limit: NESTING_MAX,
        block_nesting_limit: NESTING_MAX,
        emit_comments: false,
    };
    let parser = Parser::new_from_str_with_options(source, options);
    let mut builder = Builder { parser, anchors: HashMap::new(), nodes: 0, problems: Vec::new() };
    match builder.document() {
        Ok(node) => (node, builder.problems),
        Err(stop) => {
            builder.problems.push(*stop);
            (None, builder.problems)
        }
    }
}

struct Builder<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    problems: Vec<Problem>,
}

/// What ends the reading of the file.
type Stop = Box<Problem>;
type Read<T> = Result<T, Stop>;

impl<'a> Builder<'a> {
    fn next(&mut self) -> Read<(Event<'a>, Place)> {
        match self.parser.next() {
            Some(Ok((event, span))) => Ok((event, place(&span))),
            Some(Err(error)) => Err(Box::new(syntax(&error))),
            None => Ok((Event::StreamEnd, Place::File(0..0))),
        }
    }

    fn document(&mut self) -> Read<Option<Node>> {
        let mut root = None;
        loop {
            let (event, at) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(root),
                Event::DocumentStart(..) if root.is_some() => {
                    return Err(Box::new(Problem::new(
                        at,
                        "",
                        "expected one document, found a second one".to_owned(),
                    )));
                }
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event => root = Some(self.node(event, at)?),
            }
        }
    }

    fn node(&mut self, event: Event<'a>, at: Place) -> Read<Node> {
        self.count(&at)?;
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let mut plain = style == ScalarStyle::Plain;
                match tag.as_deref() {
                    None => {}
                    Some(tag) if tag.is_yaml_core_schema_tag("str") => plain = false,
                    Some(tag) => return Err(Self::tagged(at, tag.suffix())),
                }
                let scalar = Scalar { text: text.into_owned(), plain };
                (Node { place: at, value: Value::Scalar(scalar) }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                if let Some(tag) = tag {
                    return Err(Self::tagged(at, tag.suffix()));
                }
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, end) => {
                            let value = Value::List(items);
                            break (Node { place: across(&at, &end), value }, anchor);
                        }
                        (event, at) => items.push(self.node(event, at)?),
                    }
                }
            }
            Event::MappingStart(_, anchor, tag) => {
                if let Some(tag) = tag {
                    return Err(Self::tagged(at, tag.suffix()));
                }
                let (entries, end) = self.entries()?;
                (Node { place: across(&at, &end), value: Value::Map(entries) }, anchor)
            }
            Event::Alias(anchor) => return self.alias(anchor, at),
            other => {
                let message = format!("unexpected {other:?}");
                return Err(Box::new(Problem::new(at, "", message)));
            }
        };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn entries(&mut self) -> Read<(Vec<(Key, Node)>, Place)> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        let mut merged: Vec<(Key, Node)> = Vec::new();
        let mut seen = Seen::default();
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                // What a merge brings stands behind what is written out.
                let own: Vec<(Key, Node)> = merged
                    .into_iter()
                    .filter(|(key, _)| seen.find(&entries, &key.text).is_none())
                    .collect();
                entries.extend(own);
                return Ok((entries, at));
            }
            let key_node = self.node(event, at)?;
            let (event, at) = self.next()?;
            let value = self.node(event, at)?;
            let Value::Scalar(scalar) = key_node.value else {
                let message = "expected a key that is a word".to_owned();
                self.problems.push(Problem::new(key_node.place, "", message));
                continue;
            };
            if scalar.plain && scalar.text == "<<" {
                self.merge(value, &mut merged);
                continue;
            }
            let key = Key { text: scalar.text, place: key_node.place };
            if let Some(first) = seen.find(&entries, &key.text) {
                let message = format!("the key {} is given twice", key.text);
                let problem = Problem::new(key.place, "", message);
                self.problems.push(problem.and_at(&first.place, "first given"));
                continue;
            }
            entries.push((key, value));
            seen.last_of(&entries);
        }
    }

    /// `<<: *base` or `<<: [*one, *two]`: earlier ones win.
    fn merge(&mut self, value: Node, merged: &mut Vec<(Key, Node)>) {
        let sources = match value.value {
            Value::List(items) => items,
            value_of_one => vec![Node { place: value.place, value: value_of_one }],
        };
        for source in sources {
            if let Value::Map(entries) = source.value {
                for (key, node) in entries {
                    if merged.iter().all(|(known, _)| known.text != key.text) {
                        merged.push((key, node));
                    }
                }
            } else {
                let message = format!("expected a mapping to merge, got {}", source.describe());
                self.problems.push(Problem::new(source.place, "<<", message));
            }
        }
    }

    fn alias(&mut self, anchor: usize, at: Place) -> Read<Node> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            let message = "an alias must not stand within what it names".to_owned();
            return Err(Box::new(Problem::new(at, "", message)));
        };
        self.count_within(&node, &at)?;
        Ok(Node { place: at, value: node.value })
    }

    fn count(&mut self, at: &Place) -> Read<()> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            let message = format!("more than {NODES_MAX} values");
            return Err(Box::new(Problem::new(at.clone(), "", message)));
        }
        Ok(())
    }

    fn count_within(&mut self, node: &Node, at: &Place) -> Read<()> {
        match &node.value {
            Value::Scalar(_) => Ok(()),
            Value::List(items) => items.iter().try_for_each(|item| {
                self.count(at)?;
                self.count_within(item, at)
            }),
            Value::Map(entries) => entries.iter().try_for_each(|(_, item)| {
                self.count(at)?;
                self.count_within(item, at)
            }),
        }
    }

    fn tagged(at: Place, tag: &str) -> Stop {
        let problem = Problem::new(at, "", format!("the tag {tag} is not known here"));
        Box::new(problem.hint("write the value without a tag; quote it to make it text"))
    }
}

/// Finds keys that a mapping has already. Most have a handful, and are looked through; the index of
/// long ones is made when they have become long.
#[derive(Default)]
struct Seen(HashMap<String, usize>);

impl Seen {
    const LONG: usize = 24;

    fn find<'k>(&self, entries: &'k [(Key, Node)], text: &str) -> Option<&'k Key> {
        let found = if entries.len() < Self::LONG {
            entries.iter().position(|(key, _)| key.text == text)
        } else {
            self.0.get(text).copied()
        };
        found.map(|at| &entries[at].0)
    }

    /// Takes notice of what was put at the end.
    fn last_of(&mut self, entries: &[(Key, Node)]) {
        let known = match entries.len() {
            long if long > Self::LONG => long - 1,
            Self::LONG => 0,
            _ => return,
        };
        let new = entries.iter().enumerate().skip(known);
        self.0.extend(new.map(|(at, (key, _))| (key.text.clone(), at)));
    }
}

fn place(span: &Span) -> Place {
    Place::File(span.byte_range().unwrap_or(0..0))
}

fn across(from: &Place, to: &Place) -> Place {
    match (from, to) {
        (Place::File(from), Place::File(to)) => Place::File(from.start..to.end.max(from.start)),
        _ => from.clone(),
    }
}

fn syntax(error: &ScanError) -> Problem {
    let at = error.marker().byte_offset().unwrap_or(0);
    Problem::new(Place::File(at..at), "", error.info())
}

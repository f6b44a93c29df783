//! What another launcher, or another rank through its store, sends: any text is a line, a mapping or chunks, or is refused.
//!
//! Parser: crates/pmi/src/pmi1.rs crates/pmi/src/process_mapping.rs crates/pmi/src/chunks.rs
#![no_main]

use banyan_pmi::pmi1::{Line, MAX_LINE};
use banyan_pmi::{chunks, process_mapping};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(line) = Line::parse(&text)
        && let Ok(again) = line.encode()
    {
        assert!(again.len() <= MAX_LINE);
        let read = Line::parse(&again).expect("what is written can be read");
        assert_eq!((&read.command, &read.attributes), (&line.command, &line.attributes));
    }
    let size = bytes.len() as u32;
    if let Some(nodes) = process_mapping::parse(&text, size) {
        assert_eq!(nodes.len(), bytes.len());
    }
    let (first, rest) = text.split_once(' ').unwrap_or((&text, ""));
    let joined =
        chunks::join(first, |number| Ok::<_, ()>(rest.split(' ').nth(number - 1).map(str::to_owned)));
    if let Ok(Some(record)) = joined
        && let Some(split) = chunks::split(&record, 512)
    {
        assert_eq!(
            chunks::join(&split[0], |number| Ok::<_, ()>(split.get(number).cloned())),
            Ok(Some(record))
        );
    }
});

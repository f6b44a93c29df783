//! `PMI_process_mapping`: how PMI launchers say which ranks are on one node, as in `(vector,(0,2,4),(2,1,1))`. Each block
//! (START,NODES,RANKS) puts RANKS ranks in a row on each of the nodes START to START+NODES-1; a bare number is a node with one
//! rank.

/// The node of each of `size` ranks, in the launcher's numbers; `None` if the text is no mapping. Blocks that hold fewer ranks
/// begin again, as Hydra means it.
pub fn parse(text: &str, size: u32) -> Option<Vec<u32>> {
    let mut rest = text.strip_prefix("(vector")?;
    let mut blocks = Vec::new();
    while let Some(block) = rest.strip_prefix(',') {
        let (numbers, after) = match block.strip_prefix('(') {
            Some(inner) => inner.split_once(')')?,
            None => block.split_at(block.find([',', ')'])?),
        };
        let numbers: Vec<u32> = numbers.split(',').map(|n| n.trim().parse().ok()).collect::<Option<_>>()?;
        blocks.push(match *numbers {
            [node] => (node, 1, 1),
            [start, nodes, ranks] if nodes > 0 && ranks > 0 => (start, nodes, ranks),
            _ => return None,
        });
        rest = after;
    }
    if rest != ")" || blocks.is_empty() {
        return None;
    }
    let row = blocks.iter().cycle().flat_map(|&(start, nodes, ranks)| {
        (0..nodes).flat_map(move |node| std::iter::repeat_n(start.checked_add(node), ranks as usize))
    });
    row.take(size as usize).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mappings_of_launchers_are_read() {
        for (text, size, nodes) in [
            ("(vector,(0,1,3),(1,1,1))", 4, &[0, 0, 0, 1][..]),
            ("(vector,(0,2,2))", 4, &[0, 0, 1, 1]),
            // Hydra 4 says this of four ranks on one node.
            ("(vector,(0,1,1))", 4, &[0, 0, 0, 0]),
            ("(vector,(0,3,1),(0,3,1))", 6, &[0, 1, 2, 0, 1, 2]),
            ("(vector,7,(2,1,2))", 3, &[7, 2, 2]),
            ("(vector,(0,1,8))", 2, &[0, 0]),
        ] {
            assert_eq!(parse(text, size).as_deref(), Some(nodes), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_mappings() {
        for text in [
            "",
            "(vector)",
            "(vector,)",
            "(vector,())",
            "(vector,(0,0,1))",
            "(vector,(0,1,0))",
            "(vector,(0,1))",
            "(vector,(0,1,1)",
            "(vector,(0,1,1)))",
            "(vector,(-1,1,1))",
            "(vector,(4294967295,2,1))",
            "(list,(0,1,1))",
            "unknown",
        ] {
            assert_eq!(parse(text, 3), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\(vector[(),0-9 x]{0,40}", size in 0u32..100) {
            if let Some(nodes) = parse(&text, size) {
                prop_assert_eq!(nodes.len(), size as usize);
            }
        }

        #[test]
        fn blocks_are_rows(blocks in prop::collection::vec((0u32..9, 1u32..4, 1u32..4), 1..5)) {
            let text: String = blocks.iter().map(|(a, b, c)| format!(",({a},{b},{c})")).collect();
            let mut all = Vec::new();
            for (start, nodes, ranks) in blocks {
                (start..start + nodes).for_each(|node| all.extend(std::iter::repeat_n(node, ranks as usize)));
            }
            prop_assert_eq!(parse(&format!("(vector{text})"), all.len() as u32), Some(all));
        }
    }
}

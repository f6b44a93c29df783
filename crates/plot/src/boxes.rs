//! Drawings of boxes in boxes, and rows of boxes that lines join, in SVG. Text has letters of one width, so that every box is as wide
//! as what is in it.

use std::fmt::Write;

use crate::RGBColor;

/// A box with lines of text, and boxes inside, side by side.
#[derive(Clone, Debug)]
pub struct Block {
    /// Lines of text; the first one is the title.
    pub lines: Vec<String>,
    /// Its colour.
    pub colour: RGBColor,
    /// What is inside.
    pub inside: Vec<Block>,
    /// What is inside lies below one another, and not side by side.
    pub stacked: bool,
}

/// A row of boxes above others.
#[derive(Clone, Debug)]
pub struct Row {
    /// The boxes, from left to right.
    pub blocks: Vec<Block>,
    /// Each from a box of this row to one of the next row, by their numbers.
    pub lines_down: Vec<(usize, usize)>,
}

const LETTER: f64 = 7.3;
const LINE: f64 = 17.0;
const PAD: f64 = 9.0;
const BETWEEN_ROWS: f64 = 64.0;

impl Block {
    /// Width and height.
    fn size(&self) -> (f64, f64) {
        let letters = self.lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        let (inner_width, inner_height) = self.inner_size();
        let gap = if self.inside.is_empty() { 0.0 } else { PAD / 2.0 };
        let width = inner_width.max(letters as f64 * LETTER) + 2.0 * PAD;
        (width, self.lines.len() as f64 * LINE + gap + inner_height + 1.5 * PAD)
    }

    /// Width and height of all that is inside.
    fn inner_size(&self) -> (f64, f64) {
        let sizes: Vec<(f64, f64)> = self.inside.iter().map(Block::size).collect();
        let gaps = sizes.len().saturating_sub(1) as f64 * PAD;
        let most = |of: fn(&(f64, f64)) -> f64| sizes.iter().map(of).fold(0.0, f64::max);
        let sum = |of: fn(&(f64, f64)) -> f64| sizes.iter().map(of).sum::<f64>() + gaps;
        let (width, height) = (|size: &(f64, f64)| size.0, |size: &(f64, f64)| size.1);
        if self.stacked { (most(width), sum(height)) } else { (sum(width), most(height)) }
    }

    /// Draws it at a place, at least so wide and so high.
    fn draw(&self, svg: &mut String, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let RGBColor(r, g, b) = self.colour;
        // What lies in others shows their colours, too.
        let opacity = if self.inside.is_empty() { 0.28 } else { 0.07 };
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"4\" \
             fill=\"rgb({r},{g},{b})\" fill-opacity=\"{opacity}\" stroke=\"rgb({r},{g},{b})\"/>"
        );
        for (number, line) in self.lines.iter().enumerate() {
            let weight = if number == 0 { " font-weight=\"bold\"" } else { "" };
            let y = y + PAD / 2.0 + (number as f64 + 0.8) * LINE;
            let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{y:.1}\"{weight}>{}</text>", x + PAD, escaped(line));
        }
        let mut at = (x + PAD, y + PAD + self.lines.len() as f64 * LINE);
        let room = (width - 2.0 * PAD, height - 2.0 * PAD - self.lines.len() as f64 * LINE);
        // What is left over is shared by all, so that boxes end where the one around them does.
        let inner = self.inner_size();
        let spare = if self.stacked { room.1 - inner.1 } else { room.0 - inner.0 };
        let spare = spare.max(0.0) / self.inside.len().max(1) as f64;
        for block in &self.inside {
            let (own_width, own_height) = block.size();
            let (width, height) =
                if self.stacked { (room.0, own_height + spare) } else { (own_width + spare, room.1) };
            let drawn = if block.inside.is_empty() { own_height } else { height };
            block.draw(svg, at, (width, drawn));
            match self.stacked {
                true => at.1 += height + PAD,
                false => at.0 += width + PAD,
            }
        }
    }
}

/// Draws rows of boxes, each in the middle, from above.
pub fn boxes(rows: &[Row]) -> String {
    let sizes = |row: &Row| row.blocks.iter().map(Block::size).collect::<Vec<_>>();
    let width_of = |sizes: &[(f64, f64)]| sizes.iter().map(|size| size.0 + 2.0 * PAD).sum::<f64>();
    let width = rows.iter().map(|row| width_of(&sizes(row))).fold(0.0, f64::max);
    let (mut svg, mut y) = (String::new(), PAD);
    // Of the row above, the middle of the lower edge of each box.
    let mut above: Vec<(f64, f64)> = vec![];
    let mut joined: &[(usize, usize)] = &[];
    for row in rows {
        let sizes = sizes(row);
        let tallest = sizes.iter().map(|size| size.1).fold(0.0, f64::max);
        let mut x = (width - width_of(&sizes)) / 2.0 + PAD;
        let mut middles = vec![];
        for (block, size) in row.blocks.iter().zip(&sizes) {
            block.draw(&mut svg, (x, y), (size.0, tallest));
            middles.push(x + size.0 / 2.0);
            x += size.0 + 2.0 * PAD;
        }
        let ends = joined.iter().filter_map(|&(from, to)| Some((above.get(from)?, middles.get(to)?)));
        for ((from, bottom), to) in ends {
            let _ = writeln!(svg, "<path d=\"M{from:.1} {bottom:.1}L{to:.1} {y:.1}\" stroke=\"gray\"/>");
        }
        above = middles.iter().map(|middle| (*middle, y + tallest)).collect();
        joined = &row.lines_down;
        y += tallest + if row.lines_down.is_empty() { 2.0 * PAD } else { BETWEEN_ROWS };
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {y:.0}\" width=\"{width:.0}\" height=\"{y:.0}\" \
         font-family=\"monospace\" font-size=\"12\" fill=\"currentColor\">\n{svg}</svg>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str, inside: Vec<Block>, stacked: bool) -> Block {
        Block { lines: vec![text.to_owned()], colour: RGBColor(1, 2, 3), inside, stacked }
    }

    /// Left, top, right and bottom edge of each box of a drawing.
    fn edges(svg: &str) -> Vec<[f64; 4]> {
        let number = |line: &str, name: &str| {
            let begin = line.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
            line[begin..].split('"').next().unwrap().parse::<f64>().unwrap()
        };
        let rects = svg.lines().filter(|line| line.starts_with("<rect"));
        let edge = |line: &str| {
            let [x, y, width, height] = ["x", "y", "width", "height"].map(|name| number(line, name));
            [x, y, x + width, y + height]
        };
        rects.map(edge).collect()
    }

    #[test]
    fn boxes_lie_in_one_another_or_apart() {
        let leaf = |text: &str| block(text, vec![], false);
        let inner = |stacked| {
            block("inner", vec![leaf("a"), leaf("a longer text than the title"), leaf("c")], stacked)
        };
        let outer = block("outer", vec![inner(false), inner(true)], true);
        let rows = [
            Row { blocks: vec![leaf("up"), leaf("up, too")], lines_down: vec![(0, 0), (1, 0), (9, 9)] },
            Row { blocks: vec![outer], lines_down: vec![] },
        ];
        let svg = boxes(&rows);
        assert_eq!(svg.matches("<path").count(), 2, "{svg}");
        let edges = edges(&svg);
        assert_eq!(edges.len(), 11);
        let within = |one: &[f64; 4], other: &[f64; 4]| {
            one[0] > other[0] && one[1] > other[1] && one[2] < other[2] && one[3] < other[3]
        };
        let apart = |one: &[f64; 4], other: &[f64; 4]| {
            one[2] < other[0] || other[2] < one[0] || one[3] < other[1] || other[3] < one[1]
        };
        for (at, one) in edges.iter().enumerate() {
            for other in &edges[..at] {
                assert!(within(one, other) || apart(one, other), "{one:?} {other:?}");
            }
        }
        assert!(boxes(&[Row { blocks: vec![leaf("<&>")], lines_down: vec![] }]).contains("&lt;&amp;&gt;"));
    }
}

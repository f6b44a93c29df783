//! Figures as lines, and boxes in boxes, in SVG, in colours that can be read on light and dark ground.
#![forbid(unsafe_code)]

mod boxes;

pub use boxes::{Block, Row, boxes};
use plotters::prelude::*;
pub use plotters::style::RGBColor;

/// One line of a plot.
#[derive(Clone, Debug)]
pub struct Line {
    /// What the legend says.
    pub name: String,
    /// Its colour.
    pub colour: RGBColor,
    /// Along x and y, both above 0.
    pub points: Vec<(f64, f64)>,
    /// How the points are joined.
    pub joined: Joined,
}

/// How the points of a line are joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Joined {
    /// By a line, on which they are seen.
    Line,
    /// By dashes, without points.
    Dashes,
    /// Not at all.
    Points,
}

const SIZE: (u32, u32) = (520, 320);

/// A plot with logarithmic axes; none if there are no points.
///
/// # Errors
/// What the library says that cannot draw it.
pub fn plot(x: &str, unit: &str, lines: &[Line]) -> Result<Option<String>, String> {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let range = |axis: fn(&(f64, f64)) -> f64| {
        let least = points().map(axis).fold(f64::INFINITY, f64::min);
        let most = points().map(axis).fold(0.0, f64::max);
        (least.is_finite() && least > 0.0).then(|| least / 1.3..most * 1.3)
    };
    let (Some(across), Some(up)) = (range(|point| point.0), range(|point| point.1)) else { return Ok(None) };
    let mut svg = String::new();
    draw(&mut svg, x, unit, lines, across, up).map_err(|error| format!("cannot draw: {error}"))?;
    Ok(Some(themed(&svg)))
}

fn draw(
    svg: &mut String,
    x: &str,
    unit: &str,
    lines: &[Line],
    across: std::ops::Range<f64>,
    up: std::ops::Range<f64>,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(52)
        .build_cartesian_2d(across.log_scale().base(base(x)), up.log_scale())?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(unit)
        .x_labels(8)
        .x_label_formatter(&|value| short(*value, if base(x) == 2.0 { 1024.0 } else { 1000.0 }))
        .y_label_formatter(&|value| short(*value, 1000.0))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.15))
        .draw()?;
    for line in lines {
        let style = line.colour.stroke_width(2);
        let colour = line.colour;
        let points = || line.points.iter().copied();
        let drawn = match line.joined {
            Joined::Line => chart.draw_series(LineSeries::new(points(), style).point_size(2))?,
            Joined::Dashes => chart.draw_series(DashedLineSeries::new(points(), 4, 4, style))?,
            Joined::Points => chart.draw_series(points().map(|at| Circle::new(at, 3, colour.filled())))?,
        };
        drawn.label(&line.name);
        match line.joined {
            Joined::Points => drawn.legend(move |(x, y)| Circle::new((x + 7, y), 3, colour.filled())),
            _ => drawn.legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2))),
        };
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(TRANSPARENT)
        .draw()?;
    area.present()?;
    drop(chart);
    drop(area);
    Ok(())
}

/// Black becomes the page's own colour of text, and the picture scales.
fn themed(svg: &str) -> String {
    let (width, height) = SIZE;
    svg.replace("#000000", "currentColor").replacen(&format!("width=\"{width}\" height=\"{height}\""), "", 1)
}

/// What an axis counts by: bytes and ranks double, numbers of messages go by tens.
fn base(x: &str) -> f64 {
    if matches!(x, "bytes" | "ranks") { 2.0 } else { 10.0 }
}

/// 1536 is 1.5K by 1024.
fn short(value: f64, kilo: f64) -> String {
    fn trimmed(value: f64, unit: &str) -> String {
        let text = format!("{value:.1}");
        format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
    }
    match value {
        v if v >= kilo * kilo => trimmed(v / kilo / kilo, "M"),
        v if v >= kilo => trimmed(v / kilo, "K"),
        v if v >= 1.0 => trimmed(v, ""),
        v => format!("{v}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_is_svg_in_the_pages_colours() {
        for (joined, drawn) in
            [(Joined::Line, "<polyline"), (Joined::Dashes, "<polyline"), (Joined::Points, "<circle")]
        {
            let points = vec![(8.0, 0.2), (1024.0, 0.5)];
            let svg = plot("bytes", "us", &[Line { name: "ours".into(), colour: RED, points, joined }])
                .unwrap()
                .unwrap();
            assert!(svg.starts_with("<svg") && svg.contains("ours") && svg.contains("currentColor"), "{svg}");
            assert!(svg.contains(drawn) && !svg.contains("#000000"), "{svg}");
        }
        assert!(plot("bytes", "us", &[]).unwrap().is_none());
        assert_eq!(short(1_572_864.0, 1024.0), "1.5M");
        assert_eq!(short(0.1, 1000.0), "0.1");
    }
}

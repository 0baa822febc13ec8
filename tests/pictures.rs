//! Pictures as PNG, with the text that belongs on them.
#![cfg(feature = "png")]

use dualtape::plot::{Lines, Map};
use dualtape::{Design, Domain, Error, Points, Sampler};
use resvg::tiny_skia::Pixmap;

/// The share of dark pixels in a part of a picture, given in pixels of the SVG.
fn ink(picture: &Pixmap, x: std::ops::Range<u32>, y: std::ops::Range<u32>) -> f64 {
    let (mut dark, mut all) = (0, 0);
    for row in 2 * y.start..2 * y.end {
        for column in 2 * x.start..2 * x.end {
            let pixel = picture.pixel(column, row).expect("inside the picture");
            all += 1;
            dark += u32::from(u32::from(pixel.red()) + u32::from(pixel.green()) < 250);
        }
    }
    f64::from(dark) / f64::from(all)
}

fn decoded(png: &[u8]) -> Pixmap {
    let picture = Pixmap::decode_png(png).expect("a picture");
    assert_eq!((picture.width(), picture.height()), (1520, 960));
    picture
}

#[test]
fn text_is_drawn_without_fonts_of_the_system() -> Result<(), Error> {
    let draw = |title: &str, y: &str| {
        let lines = Lines::new(title).labels("", y);
        let lines = lines.line("", &[0.0, 1.0], &[0.0, 1.0])?;
        Ok::<_, Error>(decoded(&lines.to_png()?))
    };
    let (bare, named) = (draw("", "")?, draw("∇²u, ν = 0.01/π", "u [m/s]")?);
    let title = |picture: &Pixmap| ink(picture, 100..700, 8..42);
    let label = |picture: &Pixmap| ink(picture, 8..36, 100..400);
    assert_eq!((title(&bare), label(&bare)), (0.0, 0.0));
    assert!(title(&named) > 0.01 && label(&named) > 0.01);
    // Numbers at the axes in both.
    assert!(ink(&bare, 60..740, 418..440) > 0.005);
    Ok(())
}

#[test]
fn maps_with_points_bars_and_logarithms() -> Result<(), Error> {
    let axes = [(0.0, 1.0, 41), (0.0, 1.0, 41)];
    let grid = Points::grid(&axes)?;
    let error: Vec<f64> = grid
        .coordinate(0)
        .iter()
        .zip(grid.coordinate(1))
        .map(|(x, y)| (x * y).powi(8))
        .collect();
    let square = Domain::cuboid(&[(0.0, 1.0), (0.0, 1.0)])?;
    let points = Sampler::over(&square.interior(), 1).draw(Design::Sobol, 64)?;
    let map = Map::new("Size of the error", axes, &error)?
        .labels("x [m]", "y [m]")
        .bar_label("|error| [m/s]")
        .log()
        .equal()
        .points(points.coordinate(0), points.coordinate(1))?;
    let svg = map.to_svg()?;
    for text in ["x [m]", "y [m]", "|error| [m/s]", "1e-12", "1e0"] {
        assert!(svg.contains(text), "{text}");
    }
    assert_eq!(svg.matches("h0").count(), 2 * 64);
    let folder = std::env::temp_dir().join(format!("dualtape-pictures-{}", std::process::id()));
    map.save(folder.join("error.png"))?;
    map.save(folder.join("error.svg"))?;
    decoded(&std::fs::read(folder.join("error.png")).expect("a file"));
    assert_eq!(
        std::fs::read_to_string(folder.join("error.svg")).expect("a file"),
        svg
    );
    std::fs::remove_dir_all(&folder).expect("clean up");
    assert!(map.save("/dev/null/error.png").is_err());
    Ok(())
}

#[test]
fn slices_have_names_and_an_order() -> Result<(), Error> {
    let axes = [(0.0, 1.0, 101), (-1.0, 1.0, 65)];
    let grid = Points::grid(&axes)?;
    let wave: Vec<f64> = grid
        .coordinate(0)
        .iter()
        .zip(grid.coordinate(1))
        .map(|(t, x)| (3.0 * (x - t)).sin())
        .collect();
    let svg = Lines::new("A wave")
        .labels("x [m]", "u [m]")
        .slices(axes, &wave, &[0.0, 0.25, 1.0])?
        .dashed_slices("exact", axes, &wave, &[0.0, 0.25, 1.0])?
        .to_svg()?;
    for text in ["t = 0\n", "t = 0.25\n", "t = 1\n", "exact"] {
        assert_eq!(svg.matches(text).count(), 1, "{text}");
    }
    assert!(Lines::new("").slices(axes, &wave, &[1.01]).is_err());
    Ok(())
}

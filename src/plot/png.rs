//! From SVG to PNG. The fonts come with the library, so that a picture looks the same on
//! each machine, also where no font is installed.

use crate::error::Error;
use epaint_default_fonts::{HACK_REGULAR, UBUNTU_LIGHT};
use resvg::{tiny_skia, usvg};
use std::sync::{Arc, LazyLock};

/// Dots to a pixel of the SVG.
const SCALE: f32 = 2.0;

static OPTIONS: LazyLock<usvg::Options<'static>> = LazyLock::new(|| {
    let mut fonts = usvg::fontdb::Database::new();
    fonts.load_font_data(UBUNTU_LIGHT.to_vec());
    // Has mathematical signs that the other lacks.
    fonts.load_font_data(HACK_REGULAR.to_vec());
    let family = fonts
        .faces()
        .next()
        .and_then(|face| face.families.first())
        .map(|(name, _)| name.clone());
    if let Some(family) = family {
        fonts.set_sans_serif_family(family);
    }
    usvg::Options {
        font_family: "sans-serif".to_owned(),
        fontdb: Arc::new(fonts),
        ..usvg::Options::default()
    }
});

pub(super) fn render(svg: &str) -> Result<Vec<u8>, Error> {
    let fail = |reason: String| Error::File {
        path: "the picture as PNG".to_owned(),
        reason,
    };
    let tree = usvg::Tree::from_str(svg, &OPTIONS).map_err(|error| fail(error.to_string()))?;
    let size = tree.size();
    let (width, height) = (SCALE * size.width(), SCALE * size.height());
    let mut picture = tiny_skia::Pixmap::new(width as u32, height as u32)
        .ok_or_else(|| fail("it has no size".to_owned()))?;
    let scale = tiny_skia::Transform::from_scale(SCALE, SCALE);
    resvg::render(&tree, scale, &mut picture.as_mut());
    picture
        .encode_png()
        .map_err(|error| fail(error.to_string()))
}

/** In place of plotly where a bundle must be small: plots are then drawn with SVG. */

throw new Error('this bundle has no plotly');

export {};

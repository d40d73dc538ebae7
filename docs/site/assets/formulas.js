// Formulas, on each page that is opened.
document$.subscribe(({ body }) =>
  renderMathInElement(body, {
    delimiters: [
      { left: "\\(", right: "\\)", display: false },
      { left: "\\[", right: "\\]", display: true },
    ],
  }),
);

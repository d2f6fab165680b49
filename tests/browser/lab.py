"""A notebook in JupyterLab, as a person uses it: opened, run, clicked into, looked at."""

LONGEST = 300_000  # milliseconds that a notebook may take to run

LIBRARY = r"""
window.course = (() => {
  const panel = () => [...window.jupyterapp.shell.widgets('main')].find(w => w.content?.widgets && w.context);
  const shown = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0; };
  const words = e => (e.innerText || '').replace(/\s+/g, ' ').trim().slice(0, 100);
  return {
    panel,
    ready: () => {
      const p = panel(), kernel = p?.sessionContext.session?.kernel;
      return !!p && p.context.isReady && kernel?.status === 'idle' && kernel.connectionStatus === 'connected'
        && !document.querySelector('.jp-Dialog');
    },
    cells: () => panel().content.model.toJSON().cells,
    idle: () => panel().sessionContext.session.kernel.status === 'idle'
      && panel().content.widgets.every(w => w.model.executionState !== 'running'),
    count: number => panel().content.widgets[number].model.executionCount,
    // Whether every code cell has run, or the run has ended at an error.
    ran: () => panel().content.model.toJSON().cells.filter(c => c.cell_type === 'code').every(c => c.execution_count)
      || panel().content.model.toJSON().cells.some(c => c.outputs?.some(o => o.output_type === 'error')),
    // What is wider than the cell that it is in, or hides a part of itself: [cell, pixels too many, its text].
    overflowing: () => panel().content.widgets.flatMap((w, i) => {
      const areas = [...w.node.querySelectorAll('.jp-Cell-outputArea, .jp-MarkdownOutput')].filter(shown);
      return areas.flatMap(area => [area, ...area.querySelectorAll('*')].filter(e =>
        e instanceof HTMLElement && shown(e) && e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 2
        && (e === area || getComputedStyle(e).overflowX !== 'visible' || e.matches('.widget-label, button'))
        && !e.closest('mjx-container, input, select, .noUi-target, .jp-OutputPrompt')
      ).map(e => [i, e.scrollWidth - e.clientWidth, words(e)]));
    }),
    // Code cells with a line that is longer than the page is wide: [cell, pixels too many].
    cut: () => panel().content.widgets.flatMap((w, i) => {
      const editor = w.model.type === 'code' && w.node.querySelector('.cm-scroller');
      return editor && shown(editor) && editor.scrollWidth > editor.clientWidth + 1
        ? [[i, editor.scrollWidth - editor.clientWidth]] : [];
    }),
    scrolling: () => panel().content.widgets.flatMap((w, i) => w.outputsScrolled ? [i] : []),
    broken: () => [...panel().node.querySelectorAll('img')].filter(e => e.complete && !e.naturalWidth).length,
    text: () => panel().content.widgets.map(w => w.node.innerText),
    height: () => Math.max(...panel().content.widgets.map(w => w.node.offsetTop + w.node.offsetHeight)),
  };
})();
"""


class Lab:
    """JupyterLab in a browser's page, with one notebook open."""

    def __init__(self, page, server: str, token: str):
        self.page = page
        self.errors: list[str] = []  # uncaught in the page
        self._server = server
        self._token = token
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, name: str) -> None:
        """Opens a notebook and waits until its kernel is there."""
        address = f"{self._server}/doc/tree/notebooks/{name}.ipynb?token={self._token}"
        self.page.goto(address, wait_until="domcontentloaded")
        self.page.wait_for_function("window.jupyterapp?.shell", timeout=60_000)
        self.page.evaluate(LIBRARY)
        self.page.wait_for_function("window.course.ready()", timeout=60_000)

    def run_all(self) -> None:
        """Runs every cell, without what the file holds of an earlier run."""
        self.page.evaluate("window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
        self.page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        self.page.wait_for_function("window.course.ran()", timeout=LONGEST)
        self.settle()

    def run_cell(self, number: int, source: str | None = None) -> None:
        """Runs one cell, with its source replaced if one is given, by Shift and Enter."""
        self.page.evaluate(
            """([number, source]) => {
              const notebook = window.course.panel().content;
              notebook.deselectAll();
              notebook.activeCellIndex = number;
              notebook.mode = 'command';
              if (source !== null) notebook.widgets[number].model.sharedModel.setSource(source);
              notebook.widgets[number].model.executionCount = null;  // it gets a count when it has run
              notebook.node.focus();
            }""",
            [number, source],
        )
        self.page.keyboard.press("Shift+Enter")
        self.page.wait_for_function("n => window.course.count(n) !== null", arg=number, timeout=LONGEST)
        self.settle()

    def settle(self) -> None:
        """Waits until the kernel has been idle, and the page of one height, for half a second."""
        quiet, before = 0, None
        for _ in range(LONGEST // 100):
            idle, height = self.page.evaluate("[window.course.idle(), window.course.height()]")
            quiet = quiet + 1 if idle and height == before else 0
            before = height
            if quiet == 5:
                return
            self.page.wait_for_timeout(100)
        raise TimeoutError("the notebook is still running or changing after five minutes")

    def cells(self) -> list[dict]:
        return self.page.evaluate("window.course.cells()")

    def cell(self, number: int):
        """The place of a cell in the page."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(number)

    def ask(self, what: str):
        """What one of the functions above in the page answers."""
        return self.page.evaluate(f"window.course.{what}()")

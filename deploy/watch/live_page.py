"""Live page: its markup and style, which load nothing from elsewhere.

They are Python strings, as all pages are; :mod:`deploy.watch.live_script` fills them.
"""

from server_app.report.page import STYLE

__all__ = ["COMPARISON", "PAGE", "STYLESHEET"]

STYLESHEET = (
    STYLE
    + """\
progress { width: 100%; height: 12px; accent-color: var(--link); }
.step { font-size: 1.1rem; font-weight: 600; margin: 14px 0 4px; }
.controls { display: flex; flex-wrap: wrap; gap: 10px 22px; align-items: end; margin: 0 0 12px; }
.controls label { font-size: .9rem; }
.controls input[type="search"], .controls select {
  display: block; font: inherit; color: var(--ink); background: var(--card); padding: 6px 10px;
  border: 1px solid var(--quiet); border-radius: 6px; width: 16em; max-width: 100%;
}
fieldset { border: 0; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: 4px 14px; }
legend { font-size: .9rem; padding: 0; }
fieldset label { display: inline-flex; align-items: center; gap: 6px; min-height: 26px; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; }
.chart { width: 100%; height: 300px; touch-action: pan-y; }
.chart text { fill: var(--ink); font-size: 12px; }
.chart .axis { stroke: var(--quiet); } .chart .grid { stroke: var(--line); }
.chart .cursor { stroke: var(--quiet); stroke-dasharray: 4 3; }
.chart polyline { fill: none; stroke: var(--ink); stroke-width: 2.4; }
.chart polyline.site { stroke-width: 1; opacity: .75; }
.readout { min-height: 3em; font-size: .88rem; margin: 6px 0 0; }
.readout b { font-variant-numeric: tabular-nums; }
.ended { border-left-color: var(--finished); }
#sites td { white-space: nowrap; }
#sites td:nth-child(5) { white-space: normal; min-width: 8em; }
[hidden] { display: none !important; }
@media screen and (max-width: 760px) { .charts { grid-template-columns: minmax(0, 1fr); } }
"""
)

_FRAME = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Watching</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/watch.css">
<script src="/watch.js" defer></script>
</head>
"""

PAGE = (
    _FRAME
    + """\
<body data-page="run">
<header>
<h1><span id="name">A run</span> <span id="state" class="badge unknown">not known yet</span></h1>
<div id="lead"></div>
<p class="step" id="step" role="status">Waiting for the first figures.</p>
<progress id="progress" max="1" value="0" aria-label="Rounds that have ended"></progress>
<p id="asking" class="lead" hidden></p>
<p id="missing" class="lead" hidden></p>
<div id="error" class="error" role="alert" hidden></div>
<div id="ended" class="notes ended" role="status" hidden></div>
<nav aria-label="Pages of this run"><ul>
<li><a id="report" href="report.html" hidden>The report so far</a></li>
<li><a id="save" href="report.html" download="report.html" hidden>Save it as a page</a></li>
</ul></nav>
</header>
<main>
<h2>Sites and clusters shown</h2>
<div class="controls">
<label>Sites whose name has
<input id="filter" type="search" autocomplete="off" spellcheck="false"></label>
<fieldset id="clusters" hidden><legend>Clusters</legend></fieldset>
<label><input id="each" type="checkbox"> a line for each site shown</label>
</div>
<div class="charts">
<figure><h3 id="accuracy-title">Accuracy</h3>
<svg class="chart" id="accuracy" role="img" tabindex="0" aria-labelledby="accuracy-title"
 aria-describedby="accuracy-values"></svg>
<p class="readout" id="accuracy-values">No round has ended.</p>
<figcaption>Point at a round, or move with the arrow keys. A cluster's line is the mean of its
sites, each counting once; that of all sites counts their rows.</figcaption></figure>
<figure><h3 id="joules-title">Energy so far</h3>
<svg class="chart" id="joules" role="img" tabindex="0" aria-labelledby="joules-title"
 aria-describedby="joules-values"></svg>
<p class="readout" id="joules-values">No round has ended.</p>
<figcaption>Joules of pre-processing, training and sending since the start, without
evaluation.</figcaption></figure>
</div>
<h2>Sites</h2>
<p class="quiet" id="count"></p>
<div class="scroll" tabindex="0" role="region" aria-label="Sites, a table">
<table id="sites"><thead><tr><th scope="col">site</th><th scope="col">cluster</th>
<th scope="col" class="number">accuracy</th><th scope="col">now</th>
<th scope="col" id="doing">in the last round</th>
<th scope="col" class="number">rounds trained</th><th scope="col" class="number">joules</th></tr>
</thead><tbody></tbody></table></div>
<h2>Figures so far</h2>
<dl class="facts" id="facts"></dl>
</main>
</body>
</html>
"""
)

COMPARISON = (
    _FRAME
    + """\
<body data-page="comparison">
<header>
<h1><span id="name">A comparison</span> <span id="state" class="badge unknown">not known yet</span>
</h1>
<p class="step" id="step" role="status">Waiting for the first figures.</p>
<progress id="progress" max="1" value="0" aria-label="Runs that have finished"></progress>
<div id="ended" class="notes ended" role="status" hidden></div>
</header>
<main>
<h2>Runs</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Runs, a table">
<table id="runs"><thead><tr><th scope="col">run</th><th scope="col">state</th>
<th scope="col" class="number">round</th><th scope="col" class="number">accuracy</th>
<th scope="col" class="number">joules</th></tr></thead><tbody></tbody></table></div>
</main>
</body>
</html>
"""
)

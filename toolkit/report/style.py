"""The page's looks: colours as variables (light, dark, print), type, layout; and its few lines
of script. Contrast of every pair is tested: text at least 4.5, marks at least 3 on their ground."""

# name: (light, dark). s: load, pale to strong; d: GPU load around its mean; c: categories;
# o: batch sizes in order.
COLOURS: dict[str, tuple[str, str]] = {
    "ground": ("#ffffff", "#151618"),
    "raised": ("#f6f7f8", "#1e2023"),
    "ink": ("#16181b", "#eceef0"),
    "soft": ("#4b5159", "#b6bcc4"),
    "faint": ("#666d76", "#949ba5"),
    "rule": ("#dcdfe3", "#33373c"),
    "axis": ("#8a9199", "#717983"),
    "accent": ("#1f5fae", "#7db0f5"),
    "bar": ("#7f8d9e", "#6d7b8c"),
    "s0": ("#f1d9cf", "#57352a"),
    "s1": ("#f1f5fa", "#1c2127"),
    "s2": ("#dce8f4", "#1c3146"),
    "s3": ("#c0d7ec", "#1e4467"),
    "s4": ("#9fc2e2", "#245988"),
    "s5": ("#76a7d3", "#3474ae"),
    "s6": ("#4a87bd", "#5b98d2"),
    "s7": ("#28659f", "#95c3ee"),
    "s8": ("#10406f", "#e2f0fd"),
    "d0": ("#1d5c9c", "#6ba6e6"),
    "d1": ("#5b94c9", "#3c74ab"),
    "d2": ("#b3d0ea", "#264763"),
    "d3": ("#eeeff0", "#26292d"),
    "d4": ("#f5d3b3", "#5b3c1d"),
    "d5": ("#e9a468", "#92591f"),
    "d6": ("#cb6f22", "#cf8540"),
    "d7": ("#8f4508", "#f6bd85"),
    "c0": ("#1f6fc2", "#5fa3f0"),
    "c1": ("#c2570c", "#f0914f"),
    "c2": ("#0c8577", "#35b8a6"),
    "c3": ("#b03480", "#e57fb8"),
    "c4": ("#8a6d00", "#d0ab36"),
    "c5": ("#6551c4", "#a393f3"),
    "c6": ("#4c7f1c", "#85bb56"),
    "c7": ("#6b7178", "#9aa1aa"),
    "o0": ("#3f968c", "#438883"),
    "o1": ("#2c8896", "#3f98a6"),
    "o2": ("#24769b", "#4ba3c2"),
    "o3": ("#2c6297", "#66acd8"),
    "o4": ("#3a4e8d", "#85b5e4"),
    "o5": ("#3e3a7d", "#b0c5f2"),
    "o6": ("#372660", "#dadcfc"),
}
_DRAWN = """
*{box-sizing:border-box}
html{font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
 color:var(--ink);background:var(--ground);-webkit-text-size-adjust:100%}
body{margin:0 auto;max-width:1160px;padding:0 clamp(16px,3vw,32px) 48px}
h1,h2,p,figure,dl,dd,ol,ul{margin:0;padding:0}
header{padding:44px 0 26px}
.kind{font-size:.8rem;font-weight:600;color:var(--accent)}
h1{font-size:clamp(1.8rem,5vw,2.5rem);line-height:1.15;letter-spacing:-.02em;margin:.15em 0 .35em;
 overflow-wrap:anywhere}
.facts{max-width:72ch;color:var(--soft)}
.note{max-width:72ch;margin-top:10px;padding-left:12px;border-left:3px solid var(--rule);
 color:var(--soft)}
.keys{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:18px 24px;
 margin-top:30px}
.keys div{display:flex;flex-direction:column;border-top:2px solid var(--ink);padding-top:7px}
.keys dt{order:1;font-size:.85rem;font-weight:600}
.keys dd{font-size:1.75rem;line-height:1.25;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.keys dd.how{order:2;font-size:.78rem;line-height:1.4;letter-spacing:0;color:var(--faint)}
nav{border:solid var(--rule);border-width:1px 0;padding:10px 0}
nav ol{display:flex;flex-wrap:wrap;gap:4px 20px;list-style:none;font-size:.875rem}
a{color:var(--accent);text-decoration-thickness:1px;text-underline-offset:3px}
main{counter-reset:part}
section{padding-top:52px;counter-increment:part}
h2{font-size:1.4rem;line-height:1.25;letter-spacing:-.01em;margin-bottom:14px}
h2::before{content:counter(part);color:var(--faint);font-weight:400;margin-right:.6em}
.lead,.reading,.small{max-width:78ch}
.lead{color:var(--soft)}
figure{margin:0 0 30px}
.lead+figure{margin-top:14px}
.said{padding-left:20px}
.takeaway{max-width:70ch;font-size:1.06rem;margin-bottom:14px}
.reading,.small,.readout{font-size:.82rem;line-height:1.5;color:var(--faint)}
ul.small{padding-left:18px;margin-top:8px}
.readout{min-height:1.5em;margin-top:6px;color:var(--soft);font-variant-numeric:tabular-nums}
figcaption{margin-top:10px}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));
 gap:24px 32px;align-items:start}
.panel{min-width:0}
.panel.full{grid-column:1/-1}
.panel-heading{font-size:.88rem;font-weight:600;margin-bottom:6px}
.frame svg{display:block;width:100%;max-width:calc(var(--w)*1.15);height:auto;overflow:visible}
.scroll{overflow-x:auto;max-width:100%}
.scroll:focus-visible,a:focus-visible,summary:focus-visible{outline:2px solid var(--accent);
 outline-offset:3px}
.wide .frame svg{min-width:calc(var(--w)*.92)}
.legend{display:flex;flex-wrap:wrap;gap:3px 14px;margin-bottom:12px;list-style:none;
 font-size:.8rem;color:var(--soft)}
.legend li{display:flex;align-items:center;gap:6px}
.legend-title{flex-basis:100%}
.swatch{width:22px;height:12px;border:1px solid var(--rule)}
.sign{width:14px;height:14px;overflow:visible}
.table{margin:0 0 24px}
table{border-collapse:collapse;font-size:.84rem;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding-bottom:6px;min-width:min(280px,80vw)}
th,td{text-align:left;vertical-align:top;padding:5px 18px 5px 0;border-top:1px solid var(--rule);
 font-weight:400}
thead th{color:var(--faint);font-size:.78rem;border-top:0;vertical-align:bottom}
.n{text-align:right}td.n{white-space:nowrap}
tbody th{color:var(--soft)}
.setting td{overflow-wrap:anywhere}
.ratios tbody th{min-width:10em}
.lines td.n{white-space:pre}
.tables,.beside{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));
 gap:8px 32px;align-items:start}
.tables>*,.beside>*{min-width:0}
details{margin:0 0 20px}
summary{cursor:pointer;font-size:.875rem;color:var(--accent);margin-bottom:10px}
footer{margin-top:56px;padding-top:14px;border-top:1px solid var(--rule);font-size:.8rem;
 color:var(--faint)}
svg text{font-size:11px;fill:var(--soft);font-variant-numeric:tabular-nums}
svg .tick{fill:var(--faint)}
svg .name{font-size:11.5px;fill:var(--soft)}
svg .label,svg .value{font-size:12px}
svg .strong{font-weight:600;fill:var(--ink)}
.grid,.axis,.guide,.line,.fit,.ray,.gap,.link,.ring{fill:none;vector-effect:non-scaling-stroke}
.grid{stroke:var(--rule);stroke-width:1}
.axis{stroke:var(--axis);stroke-width:1}
.guide{stroke:var(--axis);stroke-dasharray:5 4}
.line{stroke-width:2;stroke-linejoin:round;fill:none!important}
.line.thin{stroke-width:1}
.dash1{stroke-dasharray:6 4}.dash2{stroke-dasharray:2 3}
.fit{stroke-width:2.2;stroke-linecap:round;fill:none!important}
.fit.halo{stroke:var(--ground);stroke-width:5.5}
.dots{fill:none!important;stroke-width:4;stroke-linecap:round;stroke-opacity:.5}.dots.few{stroke-width:7;stroke-opacity:.8}
.dot{fill-opacity:.6;stroke:none!important}
.mark{stroke:var(--ground)!important;stroke-width:.8}
.ring{stroke-width:1.6;fill:none!important}
.bar{fill:var(--bar)}.bar.strong{fill:var(--accent)}
.heat path{shape-rendering:crispEdges;stroke:none}
.gap{stroke:var(--ground);stroke-width:1.2}
.ray{stroke:var(--axis);stroke-width:.7;stroke-opacity:.45}
.badge{fill:var(--ink);stroke:var(--ground);stroke-width:1.5}
svg .badge-name{font-size:11px;font-weight:700;fill:var(--ground)}
.node{fill:var(--raised);stroke:var(--rule)}
.link{stroke:var(--accent);stroke-width:2.5}
.k0{stroke-opacity:.3}.k1{stroke-opacity:.58}.k2{stroke-opacity:.95}
svg .in-cell{font-size:11px}
@media (max-width:560px){svg text,svg .name,svg .label,svg .value{font-size:13px}
 .panels{gap:20px}header{padding-top:28px}section{padding-top:40px}
 .keys{grid-template-columns:1fr 1fr}.keys dd{font-size:1.45rem}}
@media print{body{max-width:none;padding:0}nav,.readout{display:none}
 .scroll{overflow:visible}.wide .frame svg{min-width:0}
 .panels,.tables,.beside{grid-template-columns:repeat(auto-fit,minmax(290px,1fr));gap:14px 24px}
 .panel,tr,.table,.legend,.keys div{break-inside:avoid}
 h2,.takeaway,.panel-heading,caption{break-after:avoid}
 section{padding-top:24px}figure{margin-bottom:16px}html{font-size:13px}}
"""


def luminance(colour: str) -> float:
    """WCAG's relative luminance of #rrggbb, 0 to 1."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def text_inside(colour: str) -> str:
    """Near-black or white, whichever stands out more from `colour`; the ratio is 4.5 or more."""
    return "#101113" if luminance(colour) > 0.1833 else "#ffffff"


def _variables(which: int) -> str:
    """Colour variables, and the text colour inside cells of the placement maps."""
    colours = [f"--{name}:{pair[which]}" for name, pair in COLOURS.items()]
    inside = [f"--t{i}:{text_inside(COLOURS[f'd{i}'][which])}" for i in range(8)]
    return ";".join(colours + inside)


def _css() -> str:
    series = [n for n in COLOURS if n[0] in "sdco" and n[1:].isdigit()]
    fills = "".join(
        f".{n}{{fill:var(--{n});background:var(--{n});stroke:var(--{n})}}" for n in series
    )
    inside = "".join(f"svg .d{i}t{{fill:var(--t{i})}}" for i in range(8))
    named = "".join(f"svg .c{i}t{{fill:var(--c{i})}}" for i in range(3))
    counts = ".q0{fill:none}" + "".join(
        f".q{i}{{fill:var(--s{i + 2});background:var(--s{i + 2})}}" for i in range(1, 7)
    )
    light, dark = _variables(0), _variables(1)
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}"
        f"@media print{{:root{{color-scheme:light;{light}}}}}"
        f"{fills}{counts}{inside}{named}{_DRAWN}"
    )


CSS = _css()

# Reads the cell under the pointer of a heat map; opens the tables before printing.
SCRIPT = """
for(const g of document.querySelectorAll('[data-heat]')){
 const d=g.dataset,out=g.closest('figure').querySelector('.readout');if(!out)continue;
 const rows=d.rows.split(','),cols=d.cols.split(','),mean=d.mean.split('|');
 const hint='Point at a cell for its value.';out.hidden=false;out.textContent=hint;
 g.addEventListener('pointerleave',()=>out.textContent=hint);
 g.addEventListener('pointermove',e=>{
  const p=new DOMPoint(e.clientX,e.clientY).matrixTransform(g.getScreenCTM().inverse());
  const x=Math.floor(p.x),y=Math.floor(p.y),v=parseInt(d.heat[y*cols.length+x],36);
  if(x>=0&&y>=0&&x<cols.length&&y<rows.length)
   out.textContent=`${d.row} ${rows[y]}, ${d.col} ${cols[x]}: ${mean[v]}`})}
addEventListener('beforeprint',()=>document.querySelectorAll('details').forEach(x=>x.open=true));
"""

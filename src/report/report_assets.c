/*
 * The style sheet and the script of report.html, as the page carries them. Light and dark follow the system; one column
 * on a phone. The script only adds the readout of charts; without it the page is complete.
 */
#include "report/report_assets.h"

#include <stddef.h>

// clang-format off
const char *const lgi_report_css[] = {
":root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--ink:#1d2129;--dim:#667080;--line:#e2e5ea;"
"--accent:#2f6fd0;--s0:#2f7fc1;--s1:#d9482b;--s2:#1a9a74;--s3:#8e4f9e;--good:#14794f;--goodbg:#e2f4ea;"
"--warn:#9a5b00;--warnbg:#fdf0d8}\n",
"@media(prefers-color-scheme:dark){:root{--page:#0e1116;--card:#171b22;--ink:#e6e9ee;--dim:#98a2b3;"
"--line:#2a303a;--accent:#7fb0ff;--s0:#63aef0;--s1:#ff8a65;--s2:#4fd0a5;--s3:#cf94de;--good:#6fdca6;"
"--goodbg:#16352a;--warn:#f5c26b;--warnbg:#3a2c12}}\n",
"*{box-sizing:border-box}\n",
"body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,"
"'Noto Sans',sans-serif}\n",
"main{max-width:1360px;margin:0 auto;padding:28px 24px 56px}\n",
"header{display:flex;flex-wrap:wrap;align-items:baseline;gap:4px 16px;margin-bottom:20px}\n",
"h1{font-size:28px;line-height:1.2;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}\n",
"header p{margin:0;color:var(--dim)}\n",
"h2{font-size:17px;margin:34px 0 12px}h2 small{font-weight:400;color:var(--dim);font-size:14px;margin-left:8px}\n",
".card{background:var(--card);border:1px solid var(--line);border-radius:12px}\n",
".figures{display:flex;flex-wrap:wrap;gap:12px}.figure{flex:1 1 220px}.figure.hash{flex-grow:2}\n",
".figure{padding:14px 16px;min-width:0}.figure h3{margin:0;font-size:13px;font-weight:500;color:var(--dim)}\n",
".figure strong{display:block;font-size:27px;line-height:1.25;font-weight:650;font-variant-numeric:tabular-nums;"
"letter-spacing:-.01em;overflow-wrap:anywhere}\n",
".figure strong small{font-size:15px;font-weight:500;color:var(--dim);margin-left:4px;letter-spacing:0}\n",
".figure p{margin:2px 0 0;font-size:13px;color:var(--dim)}\n",
".figure.hash strong{font:600 15px/1.5 ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',monospace;margin-top:4px}\n",
".chip{display:inline-block;border-radius:9px;padding:0 8px;background:var(--warnbg);color:var(--warn);font-size:12px;"
"font-weight:600}.chip.good{background:var(--goodbg);color:var(--good)}\n",
".charts{display:grid;gap:14px;grid-template-columns:1fr}\n",
"@media(min-width:820px){.charts.c2,.charts.c3{grid-template-columns:1fr 1fr}}"
"@media(min-width:1180px){.charts.c3{grid-template-columns:1fr 1fr 1fr}.charts.c3 text{font-size:16px}}.charts.c1{max-width:760px}\n",
".pair{display:grid;gap:14px;grid-template-columns:minmax(0,1fr);align-items:start}"
"@media(min-width:980px){.pair{grid-template-columns:minmax(0,1fr) minmax(0,1fr)}}.stack{display:grid;gap:14px;min-width:0}\n",
"figure{margin:0;padding:14px 16px 10px;min-width:0}figcaption{display:flex;flex-wrap:wrap;gap:2px 16px;"
"align-items:baseline;font-size:14px}\n",
"output{width:100%;min-height:20px;color:var(--ink);font-variant-numeric:tabular-nums;font-size:13px;line-height:20px;"
"white-space:nowrap;overflow:hidden;text-overflow:ellipsis}\n",
".key{color:var(--dim);white-space:nowrap}.key i{display:inline-block;width:14px;height:3px;border-radius:2px;"
"background:var(--c);vertical-align:middle;margin-right:6px}.key em{color:var(--s1);font-style:normal}\n",
".s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}\n",
".chart svg{display:block;width:100%;height:auto;touch-action:pan-y}\n",
".chart text{font-size:13px;fill:var(--dim);font-variant-numeric:tabular-nums}.chart .ty,.chart .xl{text-anchor:end}"
".chart .tx{text-anchor:middle}\n",
".grid{stroke:var(--line);fill:none}.axis{stroke:var(--dim);fill:none}\n",
".line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}.band{fill:var(--c);opacity:.16}"
".dot{fill:var(--card);stroke:var(--c);stroke-width:2}\n",
".hover path{stroke:var(--dim);stroke-dasharray:3 3;fill:none}.hover circle{fill:var(--c);stroke:var(--card);"
"stroke-width:2}\n",
".none{color:var(--dim);padding:24px 0;text-align:center;margin:0}\n",
".scroll{overflow-x:auto;padding:10px 6px}.scroll .tl{display:block;width:100%;min-width:1180px;height:auto}\n",
".table{overflow-x:auto;padding:6px 16px 12px}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;"
"font-size:14px}\n",
"th{font-weight:500;color:var(--dim);font-size:13px;text-align:right;padding:8px 0 6px 14px;white-space:nowrap}"
"td{border-top:1px solid var(--line);padding:6px 0 6px 14px;text-align:right;white-space:nowrap}"
"th:first-child,td:first-child{text-align:left;padding-left:0}\n",
"td i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:8px;vertical-align:-1px}\n",
"td.bar{width:26%;min-width:80px}td.bar span{display:block;height:9px;border-radius:4px}\n",
"td.text{white-space:normal;overflow-wrap:anywhere;text-align:left;padding-left:20px}.pair h2{margin-top:34px}.pair.texts{gap:0 14px}\n",
"pre{margin:0;padding:16px;overflow:auto;max-height:560px;font:13px/1.55 ui-monospace,SFMono-Regular,Menlo,"
"'DejaVu Sans Mono',monospace;tab-size:2}\n",
"footer{margin-top:30px;color:var(--dim);font-size:13px}\n",
"@media(max-width:640px){main{padding:18px 12px 40px}h1{font-size:22px}.figures{gap:8px}"
".figure{padding:10px 12px;flex-basis:calc(50% - 4px)}.figure strong{font-size:21px}.figure.hash{flex-basis:100%}"
".chart text{font-size:18px}h2 small{display:block;margin:2px 0 0}td.bar,th.bar{display:none}"
"figure{padding:12px 10px 8px}.table{padding:4px 12px 10px}pre{padding:12px}}\n",
"@media print{body{background:#fff}.card{break-inside:avoid}}\n",
NULL};

const char *const lgi_report_js[] = {
"'use strict';\n",
"for(const fig of document.querySelectorAll('figure.chart[data-frame]')){\n",
"  const svg=fig.querySelector('svg'),layer=svg.querySelector('.hover'),out=fig.querySelector('output');\n",
"  const frame=fig.dataset.frame.split(' ').map(Number),series=[];\n",
"  for(let s=0;fig.dataset['s'+s]!==undefined;s++){\n",
"    const text=fig.dataset['s'+s];\n",
"    series.push({label:fig.dataset['l'+s],points:text?text.split(',').map(p=>p.split(' ')):[]});\n",
"  }\n",
"  const make=(name,attrs)=>{const e=document.createElementNS('http://www.w3.org/2000/svg',name);\n",
"    for(const k in attrs)e.setAttribute(k,attrs[k]);layer.append(e);};\n",
"  const nearest=(points,x)=>{let lo=0,hi=points.length-1;\n",
"    while(lo<hi){const mid=lo+hi>>1;if(+points[mid][2]<x)lo=mid+1;else hi=mid;}\n",
"    return lo>0&&x-points[lo-1][2]<points[lo][2]-x?points[lo-1]:points[lo];};\n",
"  const clear=()=>{layer.replaceChildren();out.textContent='';};\n",
"  svg.addEventListener('pointermove',event=>{\n",
"    const box=svg.getBoundingClientRect(),x=(event.clientX-box.left)/box.width*svg.viewBox.baseVal.width;\n",
"    clear();if(x<frame[0]-8||x>frame[1]+8)return;\n",
"    const main=series.find(s=>s.points.length);if(!main)return;\n",
"    const at=nearest(main.points,x),words=[fig.dataset.xLabel+' '+at[0]];\n",
"    make('path',{d:`M${at[2]} ${frame[2]}V${frame[3]}`});\n",
"    series.forEach((s,i)=>{if(!s.points.length)return;const p=nearest(s.points,+at[2]);\n",
"      make('circle',{class:'s'+i,cx:p[2],cy:p[3],r:4.5});words.push(s.label+' '+p[1]+fig.dataset.unit);});\n",
"    out.textContent=words.join('  \\u00b7  ');\n",
"  });\n",
"  svg.addEventListener('pointerleave',clear);\n",
"}\n",
NULL};
// clang-format on

package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// chartDir has the charts, beside the page.
const chartDir = "benchmarks"

// chart is a picture of one figure. Its axis is logarithmic: what is compared
// lies up to a thousand times apart.
type chart struct {
	name, title, axis string
	// sizes are those of the scenario; none if there is one value for each
	// contestant.
	sizes    []int
	sizeAxis string
	lines    []line
}

// line has the values of a contestant, for each size.
type line struct {
	name   string
	values []float64
}

func (c chart) file() string { return c.name + ".svg" }

// charts are those of the page.
func (f *figures) charts() []chart {
	return []chart{f.pairChart(), f.handoverChart(), f.manyChart(), f.contendedChart(), f.holdChart(), f.waitChart()}
}

func (f *figures) pairChart() chart {
	return chart{name: "pair", title: "Uncontended lock and unlock", axis: "µs, less is better", lines: medians(f.pairs)}
}

func (f *figures) handoverChart() chart {
	c := chart{name: "handover", title: "Handover between two processes, p50", axis: "µs, less is better"}
	for _, o := range f.handovers {
		c.lines = append(c.lines, line{o.name, []float64{quantile(flat(o.rounds), 0.5)}})
	}
	return c
}

// manyChart has each contestant on its many connections, and on one.
func (f *figures) manyChart() chart {
	c := chart{name: "goroutines", title: fmt.Sprintf("%d goroutines, keys of their own", f.b.goroutines), axis: "pairs per second, more is better"}
	for i, s := range f.many {
		c.lines = append(c.lines,
			line{fmt.Sprintf("%s: %d connections", s.name, f.b.connections), []float64{median(s.rounds)}},
			line{s.name + ": one", []float64{median(f.manyOnOne[i].rounds)}})
	}
	return c
}

func (f *figures) contendedChart() chart {
	return chart{name: "one-key", title: fmt.Sprintf("%d goroutines, one key", f.b.contenders), axis: "pairs per second, more is better", lines: medians(f.contendedPairs())}
}

func (f *figures) holdChart() chart {
	return chart{name: "held", title: "Connections for locks held at once", axis: "connections",
		sizes: f.b.held, sizeAxis: "locks held", lines: growth(f.b.held, f.holds, holdMetrics[0].of)}
}

func (f *figures) waitChart() chart {
	return chart{name: "waiters", title: "Statements while waiting for one key", axis: "statements per second (0 is drawn as 0.1)",
		sizes: f.b.oneKey, sizeAxis: "waiters", lines: growth(f.b.oneKey, f.oneKey, waitMetrics[0].of)}
}

func medians(all []series) (lines []line) {
	for _, s := range all {
		lines = append(lines, line{s.name, []float64{median(s.rounds)}})
	}
	return lines
}

// growth has the medians of a figure at each size.
func growth[T any](sizes []int, all map[int][]outcomes[T], of func(T) float64) (lines []line) {
	for _, o := range all[sizes[0]] {
		l := line{name: o.name}
		for _, n := range sizes {
			l.values = append(l.values, median(find(column(all[n], of), o.name)))
		}
		lines = append(lines, l)
	}
	return lines
}

// save draws a chart into a directory.
func save(c chart, dir string) error {
	plot.DefaultFont.Variant = "Sans"
	drawn := drawValues
	if len(c.sizes) > 0 {
		drawn = drawGrowth
	}
	p, height, err := drawn(c)
	if err != nil {
		return fmt.Errorf("chart %s: %w", c.name, err)
	}
	p.Title.Text = c.title
	const margin = 10
	svg := vgsvg.New(8*vg.Inch, height+2*margin)
	canvas := draw.New(svg)
	canvas.SetColor(color.White)
	canvas.Fill(canvas.Rectangle.Path())
	p.Draw(draw.Crop(canvas, margin, -margin, margin, -margin))
	var text bytes.Buffer
	if _, err := svg.WriteTo(&text); err != nil {
		return err
	}
	// Whoever looks at it may not have that font.
	out := bytes.ReplaceAll(text.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,sans-serif;"))
	return os.WriteFile(filepath.Join(dir, c.file()), out, 0o644)
}

// drawValues draws a row with a point for each contestant that has a value.
func drawValues(c chart) (*plot.Plot, vg.Length, error) {
	p := plot.New()
	p.X.Label.Text = c.axis
	rows := slices.DeleteFunc(slices.Clone(c.lines), func(l line) bool { return math.IsNaN(l.values[0]) })
	slices.Reverse(rows) // the first is the topmost
	labels := plotter.XYLabels{}
	var names []string
	var values []float64
	for i, l := range rows {
		at := plotter.XY{X: drawable(l.values[0]), Y: float64(i)}
		points, err := plotter.NewScatter(plotter.XYs{at})
		if err != nil {
			return nil, 0, err
		}
		points.Color, points.Shape, points.Radius = colorOf(l.name), draw.CircleGlyph{}, vg.Points(4)
		p.Add(points)
		labels.XYs = append(labels.XYs, at)
		labels.Labels = append(labels.Labels, "  "+number(l.values[0]))
		names = append(names, l.name)
		values = append(values, at.X)
	}
	texts, err := plotter.NewLabels(labels)
	if err != nil {
		return nil, 0, err
	}
	for i := range texts.TextStyle {
		texts.TextStyle[i].YAlign = draw.YCenter
	}
	p.Add(plotter.NewGrid(), texts)
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.5, float64(len(names))-0.5
	logarithmic(&p.X, values)
	p.X.Max *= 2 // room for the last label
	return p, vg.Length(len(rows))*0.3*vg.Inch + vg.Inch, nil
}

// drawGrowth draws a line for each contestant over the sizes.
func drawGrowth(c chart) (*plot.Plot, vg.Length, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = c.sizeAxis, c.axis
	p.Add(plotter.NewGrid())
	var sizes, values []float64
	for i, l := range c.lines {
		var xys plotter.XYs
		for k, v := range l.values {
			if !math.IsNaN(v) {
				xys = append(xys, plotter.XY{X: float64(c.sizes[k]), Y: drawable(v)})
				sizes, values = append(sizes, float64(c.sizes[k])), append(values, drawable(v))
			}
		}
		path, points, err := plotter.NewLinePoints(xys)
		if err != nil {
			return nil, 0, err
		}
		path.Color, points.Color = plotutil.Color(i), plotutil.Color(i)
		path.Dashes, points.Shape = plotutil.Dashes(i), plotutil.Shape(i)
		if strings.HasPrefix(l.name, "Holdfast") {
			path.Width = vg.Points(2.5)
		}
		p.Add(path, points)
		p.Legend.Add(l.name, path, points)
	}
	p.Legend.Top, p.Legend.Left = true, true
	logarithmic(&p.X, sizes)
	logarithmic(&p.Y, values)
	p.Y.Max *= math.Pow(10, 0.3*float64(len(c.lines))/2) // room for the legend
	return p, 5 * vg.Inch, nil
}

// drawable is v, or what stands for nothing at all on a logarithmic axis.
func drawable(v float64) float64 { return max(v, 0.1) }

// logarithmic scales an axis by powers of ten around the values.
func logarithmic(a *plot.Axis, values []float64) {
	a.Scale = plot.LogScale{}
	a.Tick.Marker = plot.LogTicks{Prec: -1}
	a.Min = math.Pow(10, math.Floor(math.Log10(slices.Min(values))))
	a.Max = math.Pow(10, math.Ceil(math.Log10(slices.Max(values))))
	if a.Max == a.Min {
		a.Max *= 10
	}
}

// colorOf tells ours, the floor and the peers apart.
func colorOf(name string) color.Color {
	switch {
	case strings.HasPrefix(name, "Holdfast"):
		return color.RGBA{R: 0xd6, G: 0x3a, B: 0x1e, A: 0xff}
	case strings.HasPrefix(name, "raw"), strings.HasPrefix(name, "pgbench"):
		return color.Gray{Y: 0x80}
	default:
		return color.RGBA{R: 0x1f, G: 0x5f, B: 0xb4, A: 0xff}
	}
}

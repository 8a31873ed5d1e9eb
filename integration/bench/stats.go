package main

import (
	"math"
	"slices"
)

// quantile returns the value below which a part q of the values lies; NaN if
// there are none. NaNs among them do not count.
func quantile(values []float64, q float64) float64 {
	values = slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}

// median is the value in the middle, or between the two that are there.
func median(values []float64) float64 {
	values = slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// ratio is the median of the rounds' own ratios of a to b. Whatever slows the
// machine down for a while slows both, and falls out.
func ratio(a, b []float64) float64 {
	ratios := make([]float64, min(len(a), len(b)))
	for i := range ratios {
		ratios[i] = a[i] / b[i]
	}
	return median(ratios)
}

// spread is half the distance between the quartiles, as a part of the median.
func spread(values []float64) float64 {
	return (quantile(values, 0.75) - quantile(values, 0.25)) / 2 / median(values)
}

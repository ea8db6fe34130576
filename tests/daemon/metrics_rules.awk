# metrics_rules.awk - checks metrics in the Prometheus text format, on standard input: the rules of
# the format and those of `promtool check metrics`. Prints each violation; exit code 1 if there are any.
function bad(what) { print "line " NR ": " what ": " $0; n_bad++ }
function base_of(name) {  # of a sample of a histogram: the name of the histogram
    if (match(name, /_(bucket|sum|count)$/) && type[substr(name, 1, RSTART - 1)] == "histogram")
        return substr(name, 1, RSTART - 1)
    return name
}
/^# HELP / {
    if ($3 in help) bad("a second HELP")
    help[$3] = 1
    if (NF < 4) bad("an empty HELP")
    if ($4 ~ /^(of|likewise|it|those)$/) bad("a HELP that needs the line before")
    next
}
/^# TYPE / {
    if ($3 in type) bad("a second TYPE")
    if (!($3 in help)) bad("a TYPE before its HELP")
    if ($3 !~ /^[a-z_][a-z0-9_]*$/) bad("a name with other characters than a-z, 0-9 and _")
    if ($4 !~ /^(counter|gauge|histogram)$/) bad("an unknown type")
    if (($4 == "counter") != ($3 ~ /_total$/)) bad("_total is the suffix of counters, and only of these")
    if ($4 != "histogram" && $3 ~ /_(bucket|count|sum)$/) bad("a suffix of histograms")
    if ($3 ~ /_(ms|ns|milliseconds|nanoseconds|kib|mib|minutes)(_|$)/) bad("a unit that is no base unit")
    type[$3] = $4
    next
}
/^#/ { bad("a comment"); next }
{
    name = $0; sub(/[{ ].*/, "", name)
    base = base_of(name)
    value = $0; sub(/.* /, "", value)
    labels = $0; sub(/^[^{ ]*/, "", labels); sub(/ [^ ]*$/, "", labels)
    if (!(base in type)) bad("a sample without TYPE")
    if (base != last && base in seen) bad("samples of one metric that are apart")
    seen[base] = 1; last = base
    if (value !~ /^[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?$/) bad("a value that is no number")
    if (labels != "" && labels !~ /^\{[a-z_]+="([^"\\]|\\.)*"(,[a-z_]+="([^"\\]|\\.)*")*\}$/) bad("labels")
    if ((name, labels) in sample) bad("a second sample with these labels")
    sample[name, labels] = 1
    if (base == name) next
    series = labels; sub(/,?le="[^"]*"/, "", series)
    if (name ~ /_bucket$/) {
        le = labels; sub(/.*le="/, "", le); sub(/".*/, "", le)
        if (value + 0 < count[base, series] + 0) bad("a bucket that has less than the one before")
        if (le != "+Inf" && le + 0 <= limit[base, series] + 0) bad("limits that do not ascend")
        count[base, series] = value; limit[base, series] = le
        if (le == "+Inf") inf[base, series] = value
    } else if (name ~ /_sum$/) {
        sum[base, series] = 1
    } else {
        if (!((base, series) in inf) || inf[base, series] != value) bad("_count is not the bucket +Inf")
        if (!((base, series) in sum)) bad("a histogram without _sum")
        n_histograms++
    }
}
END {
    if (!n_histograms) { print "there is no histogram"; n_bad++ }
    exit n_bad > 0
}

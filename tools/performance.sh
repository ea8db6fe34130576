#!/bin/sh
# performance.sh - writes docs/performance.md from the benchmark results in bench/results.
#
#   tools/performance.sh [--check] fails if docs/performance.md is not what the results give
#   tools/performance.sh --write   writes docs/performance.md; `make performance` runs it
#   tools/performance.sh --print   prints the page
#
# bench/performance.in is the page with directives instead of tables; bench/README.md describes the
# results. Directives, fields separated by " | ":
#
#   @contents                             the table of contents
#   @table HEADING                        the head of a table
#   @row LABEL | BENCH | CASE [| OPTION]  one row; OPTION: field=, unit=, bound= or variant=TEXT
#   @family NAME | LABEL [| BENCH | CASE [| OPTION]]  a row of a family of worker/arch/registry.c
#   @sources                              the table of the results that the page uses
#
# A row takes the result with the newest date; without a result it reads "not measured". A family of
# the registry without a row, and a page of more than 150 lines, are errors.
exec perl -x "$0" "$@"
#!perl
use strict;
use warnings;

my $top = $ENV{srcdir} || $0 =~ s{/?tools/performance\.sh$}{}r || '.';
chdir $top or die "performance.sh: $top: $!\n";
my ($template, $page) = ('bench/performance.in', 'docs/performance.md');
my (%results, %families);

read_results($_) for sort glob 'bench/results/*.jsonl';
my $new = make_page();
my $mode = @ARGV ? $ARGV[0] : '--check';
if ($mode eq '--print') {
    print $new;
} elsif ($mode eq '--check') {
    my $old = -e $page ? read_file($page) : '';
    die "performance.sh: $page is not what bench/results gives; run tools/performance.sh --write\n"
        if $old ne $new;
} elsif ($mode eq '--write') {
    open my $out, '>', $page or die "performance.sh: $page: $!\n";
    print $out $new;
    close $out or die "performance.sh: $page: $!\n";
} else {
    die "usage: performance.sh [--check | --write | --print]\n";
}

sub read_file {
    my ($file) = @_;
    open my $in, '<', $file or die "performance.sh: $file: $!\n";
    local $/;
    return scalar <$in>;
}

# A flat JSON object of strings, numbers and booleans.
sub object {
    my ($where, $line) = @_;
    my %o;
    $line =~ /^\{(.*)\}\s*$/ or die "performance.sh: $where: not a JSON object\n";
    my $rest = $1;
    my $string = qr/"((?:[^"\\]|\\.)*)"/;
    my $other = qr/(-?[\d.]+(?:[eE][-+]?\d+)?|true|false|null)/;
    while ($rest =~ /\G\s*"([^"\\]+)"\s*:\s*(?:$string|$other)\s*(?:,|$)/gc) {
        $o{$1} = defined $2 ? $2 =~ s/\\(.)/$1/gr : $3;
    }
    die "performance.sh: $where: not a flat JSON object\n" if (pos($rest) // 0) < length $rest;
    return \%o;
}

sub read_results {
    my ($file) = @_;
    my ($head, $n) = (undef, 0);
    for (split /\n/, read_file($file)) {
        my $o = object("$file:" . ++$n, $_);
        if (exists $o->{machine}) {
            for my $key (qw(machine commit command date)) {
                die "performance.sh: $file:$n: no $key\n" unless exists $o->{$key};
            }
            $head = $o;
            $head->{file} = $file;
            next;
        }
        die "performance.sh: $file:$n: a result before the header\n" unless $head;
        for my $key (qw(bench case n)) {
            die "performance.sh: $file:$n: no $key\n" unless exists $o->{$key};
        }
        my $name = join "\0", $o->{bench}, $o->{case}, $head->{variant} // '';
        push @{ $results{$name} }, [$head, $o];
    }
}

# The newest result that has the field.
sub find {
    my ($bench, $case, $variant, $field) = @_;
    my $all = $results{ join "\0", $bench, $case, $variant } || [];
    my @found = sort { $b->[0]{date} cmp $a->[0]{date} || $b->[0]{file} cmp $a->[0]{file} }
        grep { exists $_->[1]{$field} } @$all;
    return @found ? @{ $found[0] } : ();
}

# One source per file, machine, commit and date; its commands are collected.
my (%source, @sources);
sub source_of {
    my ($head) = @_;
    my $key = join "\0", @$head{qw(file machine commit date)};
    if (!$source{$key}) {
        push @sources, $source{$key} = { %$head, commands => [], number => 1 + @sources };
    }
    my $commands = $source{$key}{commands};
    push @$commands, $head->{command} unless grep { $_ eq $head->{command} } @$commands;
    return $source{$key}{number};
}

sub figure {
    my ($v) = @_;
    return $v if $v !~ /^-?\d/;
    my $size = abs $v;
    $v = sprintf $size >= 1000 ? '%.0f' : $size >= 100 ? '%.4g' : '%.3g', $v;
    1 while $v =~ s/^(-?\d+)(\d{3})/$1,$2/;
    return $v;
}

sub row {
    my ($label, $bench, $case, @options) = @_;
    my %o = (field => 'value', variant => '');
    for (@options) {
        /^(\w+)=(.*)$/ or die "performance.sh: $template: option $_\n";
        $o{$1} = $2;
    }
    my ($head, $r) = defined $case ? find($bench, $case, @o{qw(variant field)}) : ();
    return "| $label | not measured | | | | | |\n" unless $r;
    my ($least, $most) =
        $o{field} eq 'value' ? @$r{qw(min max)} : @$r{ "$o{field}_min", "$o{field}_max" };
    my $spread = defined $least && defined $most ? figure($least) . ' to ' . figure($most) : '';
    my $bound = $o{bound};
    $bound //= "at most $r->{at_most}" if exists $r->{at_most};
    $bound //= exists $r->{at_least} ? "at least $r->{at_least}" : '';
    if ($bound =~ /^at (most|least) ([\d,.]+)$/) {
        my ($most, $limit) = ($1 eq 'most', $2 =~ tr/,//dr);
        $bound .= ', missed' if $most ? $r->{ $o{field} } > $limit : $r->{ $o{field} } < $limit;
    }
    return sprintf "| %s | %s | %s | %s | %s | %s | %s |\n", $label, figure($r->{ $o{field} }),
        $spread, $o{unit} // $r->{unit}, $r->{n}, $bound, source_of($head);
}

sub make_page {
    my (@sections, $out, %seen);
    my $registry = read_file('worker/arch/registry.c');
    $families{$1} = 1 while $registry =~ /^\s*&arch_(\w+),/gm;
    my @lines = split /\n/, read_file($template), -1;
    pop @lines;
    push @sections, /^## (.*)/ ? $1 : () for @lines;
    $out = '';
    for (@lines) {
        my ($directive, $rest) = /^@(\w+) ?(.*)$/ or do { $out .= "$_\n"; next };
        my @f = split / \| /, $rest;
        if ($directive eq 'contents') {
            $out .= join(" · ", map { "[$_](#" . anchor($_) . ")" } @sections) . "\n";
        } elsif ($directive eq 'table') {
            $out .= "| $rest | median | smallest to largest | unit | n | bound | source |\n"
                . "|---|--:|--:|---|--:|---|--:|\n";
        } elsif ($directive eq 'row') {
            $out .= row(@f);
        } elsif ($directive eq 'family') {
            my $name = shift @f;
            die "performance.sh: $template: no family $name in worker/arch/registry.c\n"
                unless $families{$name};
            $seen{$name} = 1;
            $out .= row(@f);
        } elsif ($directive eq 'sources') {
            $out .= sources();
        } else {
            die "performance.sh: $template: directive \@$directive\n";
        }
    }
    my @missing = grep { !$seen{$_} } sort keys %families;
    die "performance.sh: $template: no row for the family @missing\n" if @missing;
    my $n = $out =~ tr/\n//;
    die "performance.sh: $page has $n lines, more than 150\n" if $n > 150;
    return $out;
}

sub anchor {
    my ($heading) = @_;
    my $a = lc $heading;
    $a =~ s/[^a-z0-9 _-]//g;
    $a =~ tr/ /-/;
    return $a;
}

sub sources {
    my $out = "| source | machine | commit | date | command | file | entry in the diary |\n"
        . "|--:|---|---|---|---|---|---|\n";
    for my $h (@sources) {
        my $file = $h->{file} =~ s{^bench/results/}{}r;
        my $entry = $h->{source} ? $h->{source} =~ s{^docs/(\S+\.md)}{[`$1`]($1)}r : '';
        my $commands = join '; ', map { "`$_`" } @{ $h->{commands} };
        $out .= '| ' . join(' | ', @$h{qw(number machine commit date)}, $commands,
            "[`$file`](../$h->{file})", $entry) . " |\n";
    }
    return $out;
}

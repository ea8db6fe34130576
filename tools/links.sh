#!/bin/sh
# links.sh - checks that relative links of Markdown files lead to a file, and to a heading of it.
#
#   tools/links.sh [FILE...]     without files: every *.md of the tree
#
# Text in code blocks is no link. Also checked: each name docs/NAME.md in a file of the tree exists.
# Prints file:line: message for each error.
exec perl -x "$0" "$@"
#!perl
use strict;
use warnings;

my $top = $ENV{srcdir} || $0 =~ s{/?tools/links\.sh$}{}r || '.';
chdir $top or die "links.sh: $top: $!\n";
my ($errors, %anchors) = (0);

my @find = qw{find . ( -name .git -o -name build* -o -name _* -o -name autom4te.cache -o -name m4
    -o -name data -o -name bundle -o -name lagan-[0-9]* ) -prune -o -type f -print};
open my $find, '-|', @find or die "links.sh: find: $!\n";
chomp(my @files = <$find>);
s{^\./}{} for @files;
for my $file (@ARGV ? @ARGV : sort @files) {
    check_links($file) if $file =~ /\.md$/;
    next if $file =~ m{^(docs/lab/|tools/links\.sh)};
    check_names($file) if $file =~ m{\.(md|c|h|cu|cuh|sh|py|inc|txt)$};
}
exit($errors ? 1 : 0);

sub error {
    print "$_[0]:$_[1]: $_[2]\n";
    $errors++;
}

# The lines of a Markdown file without code: [number, text].
sub lines_of {
    my ($file) = @_;
    open my $in, '<', $file or die "links.sh: $file: $!\n";
    my ($code, @lines) = (0);
    while (<$in>) {
        if (/^\s*```/) { $code = !$code; next }
        next if $code || /^    /;
        push @lines, [$., $_];
    }
    return @lines;
}

sub anchors_of {
    my ($file) = @_;
    return $anchors{$file} ||= { map {
        my $h = $_->[1] =~ /^#+ (.*)/ ? lc $1 : '';
        $h =~ s/\s+$//;
        $h =~ s/[^\w -]//g;
        $h =~ tr/ /-/;
        ($h => 1)
    } lines_of($file) };
}

sub check_links {
    my ($file) = @_;
    my $folder = $file =~ m{^(.*)/} ? "$1/" : '';
    for (lines_of($file)) {
        my ($n, $text) = @$_;
        while ($text =~ /\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)/g) {
            my $link = $1;
            next if $link =~ /^[a-z]+:/;
            my ($path, $anchor) = split /#/, $link, 2;
            my $target = $path eq '' ? $file : $folder . $path;
            1 while $target =~ s{(^|/)[^/.][^/]*/\.\./}{$1};
            if (!-e $target) {
                error($file, $n, "no file $target");
            } elsif (defined $anchor && $target =~ /\.md$/ && !anchors_of($target)->{$anchor}) {
                error($file, $n, "no heading #$anchor in $target");
            }
        }
    }
}

sub check_names {
    my ($file) = @_;
    open my $in, '<', $file or die "links.sh: $file: $!\n";
    while (<$in>) {
        while (m{\b(docs/[a-z/-]+\.md)\b}g) {
            error($file, $., "no file $1") unless -e $1;
        }
    }
}

#!/usr/bin/env bash
# check_kernel_calls.sh [ROOT]: a kernel call with more than four values in braces names them (designated initialisers).
# Prints every call that does not, then fails.
set -eu
cd "${1:-$(dirname "$0")/..}"

find src tests bench examples -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null |
  sort | xargs -r perl -e '
use strict;
my $broken = 0;
# Counts the values of each braced list among the arguments that begin at $at.
sub check_call {
  my ($file, $text, $at, $name) = @_;
  my ($depth, $list, $values) = (1, 0, 0);
  pos($$text) = $at;
  while ($depth > 0 && $$text =~ /([(\[{}\])]|,)/g) {
    my ($sign, $end) = ($1, pos $$text);
    if ($sign =~ /[(\[{]/) {
      ++$depth;
      ($list, $values) = ($end, 1) if $sign eq "{" && $depth == 2;
    } elsif ($sign ne ",") {
      if ($sign eq "}" && $depth == 2 && $values > 4 && substr($$text, $list) !~ /^\s*\./) {
        my $line = 1 + (substr($$text, 0, $at) =~ tr/\n//);
        print "kernel calls: $file:$line: $name has $values values without names\n";
        $broken = 1;
      }
      --$depth;
    } elsif ($depth == 2) {
      ++$values;
    }
  }
}
for my $file (@ARGV) {
  open my $in, "<", $file or die "$file: $!";
  my $text = do { local $/; <$in> };
  $text =~ s{//[^\n]*}{}g;
  $text =~ s{"(?:[^"\\\n]|\\.)*"}{""}g;
  # Tables are reached by `kernels`, or by a variable of their type.
  my %tables = map { $_ => 1 } $text =~ /\b\w+Kernels\b\s*&?\s+&?(\w+)\b/g;
  while ($text =~ /\b(\w+)(?:\(\))?(?:\.|->)(?:(\w+)(?:\.|->))?(\w+)\(/g) {
    my ($first, $second, $kernel, $at, $next) = ($1, $2 // "", $3, pos $text, $-[2] // $-[3]);
    my $table = $second eq "" ? $tables{$first} : $first =~ /kernels$/i || $tables{$second};
    check_call($file, \$text, $at, "$kernel()") if $table;
    pos($text) = $next;
  }
}
exit $broken;
'

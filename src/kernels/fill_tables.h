// Builds Kernels and their tables without lists of members, so that adding a table, or a kernel to
// a table, changes only the source that defines the kernels.
#pragma once

namespace bev {

// Returns an aggregate initialised with `values`, and with `source` converted to the type of each
// remaining member.
template <class Aggregate, class Source, class... Values>
constexpr Aggregate fill_members(const Source& source, const Values&... values) {
  constexpr bool complete = requires { Aggregate{values...}; };
  if constexpr (complete && !requires { Aggregate{values..., source}; }) {
    return Aggregate{values...};
  } else {
    static_assert(sizeof...(values) < 64, "the source converts to no type of the next member");
    return fill_members<Aggregate>(source, values..., source);
  }
}

}  // namespace bev

// Filling in Kernels and their tables without lists of members: adding a table, or a kernel to one,
// touches the source that has the kernels and no other.
#pragma once

namespace bev {

// An aggregate of `values` and then `source` for all other members, to whose types it converts.
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

"""The two configurations of seed 004, word for word with their comments."""

EXAMPLE = """
chunk-manifests:
  sets:                           # the lists of manifest sets and their properties
                                  # it's a list because order is important

    - coord1:                     # a name for the set, used later with rules

        max-manifest-size: 10000  # this set will contain manifests with <= 10k references

        arrays-per-manifest: null # pack this many arrays in each manifest
                                  # max-manifest-size and arrays-per-manifest are
                                  # mutually exclusive

        overflow-to: coord2       # if an array cannot fit in the set, send it to set coord2
                                  # if no overflow-to is indicated it goes to
                                  # the default set (see below)

        cardinality: 2            # this set cannot have more than two manifest files
                                  # cardinality = null means unlimited

    - coord2:
        max-manifest-size: 10000
                                  # overflow-to: default       # by default
                                  # arrays-per-manifest: null  # by default
                                  # cardinality: 1             # by default

    - big-array:
        max-manifest-size: null
        arrays-per-manifest: 1
        cardinality: null

    - default:                  # default set must always exist, from defaults if needed
                                # max-size: 1_000_000 by default (we'll have to tune)
                                # default set is the only one that can have members that
                                # go beyond the max-size
                                # (in case of large arrays that don't fit)
                                # default always has cardinality = null

  rules:                        # what arrays go to each manifest set, an ordered list

    # each rule has a target (the manifest set) and a set of conditions that are and-ed
    # rules are applied in the order declared, and they break on the first match

    - path: .*/(latitude|longitude|time)  # an optional regex matching on path

      metadata-chunks: [0, 500]           # arrays having number of chunks in this range
                                          # both extremes can be null
                                          # in the future we'll implement initialized-chunks
                                          # that will be useful for sparse arrays

      target: coord1                      # arrays that match will go to this manifest set


    - metadata-chunks: [0, 200]           # arrays < 200 chunks will go to coord2
                                          # but only if they didn't get assigned by the rule above
      target: coord2


    - metadata-chunks: [2000000, null]    # huge arrays have their special manifest set
      target: big-array


  preload:                      # what manifests to asynchronously preload on session start
    max-manifest-size: 50000    # don't preload manifests larger than this
    max-manifests: 10           # don't preload more than this many manifests
    arrays:                     # currently we support selecting by path only
                                # we will refine with more power if needed

      - path: .*/time           # will preload manifests for all arrays matching this regex
      - path: .*/latitude
      - path: .*/longitude
"""

DEFAULTS = """
chunk-manifests:  # of course, we'll have to tune all these numbers
  sets:
    - coordinates:                # we intend coordinate arrays to be assigned here
        max-manifest-size: 50000
        cardinality: 1
        max-arrays-per-manifest: null
        overflow-to: default

    - default:
        max-manifest-size: 1000000
        cardinality: null
        max-arrays-per-manifest: null
        overflow-to: null

  rules:
    - metadata-chunks: [0, 5000]
      path: .*
      target: coordinates


  # should we actually do this by default or is no-preload a better default?
  preload:
    max-manifest-size: 50000
    max-manifests: 1
    arrays:
      - path: .*/time
      - path: .*/latitude
      - path: .*/longitude
"""

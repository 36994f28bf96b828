//! The native part of Forelock's npm package.
